"""`python -m benchmarks.faults`: random faults in a live fleet on two hosts, and their effect on serving."""

import argparse
import itertools
import shutil
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.faults import claims
from benchmarks.faults.books import Books, Reader
from benchmarks.faults.claims import Asked, Seen, Served
from benchmarks.faults.fleet import Fleet
from benchmarks.faults.plan import Victim, faults
from benchmarks.faults.processes import FleetError
from benchmarks.faults.setting import ENGINE_KINDS, FILE, HOSTS, LEDGER, TEAMS, TRAINER_DEVICE, Setting
from benchmarks.faults.trial import Striker, Trial
from benchmarks.shared import arguments, measured
from rose.accept.report import Report, phase
from rose.config import CoservingConfig
from rose.terminal import echo

_CALM_S = 30.0  #: Seconds that serving is watched before the first fault.
_CALM_QUICK_S = 15.0
_LAST_S = 300.0  #: Timeout for lending after the last fault, whose host may still be starting.
_QUICK = (Victim.CONTROLLER, Victim.SCHEDULER, Victim.LINE)
_BOOKS_TIMEOUT_S = 300.0
_STEPS = 1_000_000


def main() -> None:
    options = _arguments()
    report = Report("faults", options.quick)
    with measured(report, options.json) as folder:
        try:
            measure(report, folder, options)
        finally:
            if options.keep is not None:
                shutil.copytree(folder, options.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))


def measure(report: Report, folder: Path, options: argparse.Namespace) -> None:
    report.detail["engines"] = options.engines
    struck: list[Trial] = []
    with ExitStack() as stack:
        with phase("fleet"):
            fleet = stack.enter_context(Fleet(folder, Setting(options.engines), options.seed))
            # The second host's serving has the core of this device: turns are played on lent devices.
            fleet.rose("drain", TRAINER_DEVICE, "-c", FILE, "--reason", "its core is another host's")
            trainer = fleet.train(TEAMS[0], _STEPS, resume=True, again=True)
        reader = Reader(fleet.hosts["one"], LEDGER)
        stack.callback(reader.stop)
        ended, tried = False, 0
        try:
            striker = Striker(fleet, options.seed)
            with phase("calm before the first fault"):
                _calm(fleet, striker, _CALM_QUICK_S if report.quick else _CALM_S)
            victims = tuple(map(Victim, options.only)) if options.only else _QUICK if options.quick else tuple(Victim)
            trials = options.trials or (3 if options.quick else 100)
            for tried, fault in enumerate(itertools.islice(faults(options.seed, victims), trials), 1):
                begun = time.monotonic()
                trial = striker.strike(tried, fault)
                if trial is None:
                    echo(f"trial {tried}: {fault}: could not be carried out", err=True)
                    continue
                struck.append(replace(trial, wrong=tuple(_books_now(reader))))
                text = claims.line(_seen(fleet, struck, tried), struck[-1])
                echo(f"trial {tried}, {time.monotonic() - begun:.0f} s, {text}", err=True)
            with phase("until all is lent again"):
                for host in HOSTS:
                    striker.wait_lending(host, _LAST_S)
        except FleetError:
            ended = True
            raise
        finally:
            last = _end(fleet, options.keep)
            report.detail["ends"] = {program.name: program.codes for program in fleet.programs}
            report.detail["steps"] = len(trainer.lines)
            if struck:
                seen = replace(_seen(fleet, struck, tried), ended=ended)
                claims.claim(report, seen, last)
                claims.show_causes(seen)


def _calm(fleet: Fleet, striker: Striker, seconds: float) -> None:
    """Wait until every device is lent and serves, and for `seconds` more."""
    if not all(striker.wait_lending(host, 600.0) for host in HOSTS):
        raise FleetError("not every device was lent before the first fault")
    time.sleep(seconds)
    if not fleet.setting.made and {one["host"] for one in fleet.heard.served} != set(HOSTS):
        raise FleetError("no user of serving was answered on every host before the first fault")


def _end(fleet: Fleet, keep: Path | None) -> Books | None:
    """End the fleet; return its books, None if the ledger cannot be read."""
    last: Books | None = None
    with phase("end"):
        try:
            fleet.stop()
        except FleetError as error:
            echo(str(error), err=True)
        try:
            text = fleet.call("one", "-m", "benchmarks.faults.books", LEDGER, timeout_s=_BOOKS_TIMEOUT_S)
            last = msgspec.json.decode(text, type=Books)
        except (FleetError, OSError) as error:
            echo(f"the ledger cannot be read: {error}", err=True)
        if keep is not None and fleet.hosts["one"].up:
            shutil.copytree(fleet.inside("one", LEDGER), keep / "ledger", dirs_exist_ok=True)
    return last


def _books_now(reader: Reader) -> list[str]:
    try:
        return reader.read(_BOOKS_TIMEOUT_S).now_wrong()
    except (OSError, ValueError) as error:
        return [f"the ledger cannot be read: {error}"]


def _seen(fleet: Fleet, struck: list[Trial], tried: int) -> Seen:
    heard = fleet.heard
    return Seen(
        trials=list(struck),
        leases={host: list(watch.leases) for host, watch in fleet.watches.items()},
        work={host: list(watch.work) for host, watch in fleet.watches.items()},
        ran={host: list(watch.ran) for host, watch in fleet.watches.items()},
        served=[Served(**one) for one in list(heard.served)],
        health=[Asked(**one) for one in list(heard.health)],
        ttl_s=CoservingConfig().lease_ttl_s,
        planned=tried,
    )


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, help="faults; 100 if left out, 3 with --quick")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and of the traffic")
    parser.add_argument("--engines", choices=ENGINE_KINDS, default="sglang", help="what serves and is lent")
    parts = [str(victim) for victim in Victim]
    parser.add_argument("--only", nargs="+", metavar="PART", choices=parts, help="strike these parts alone")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep logs, the hosts' disks and the ledger there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
