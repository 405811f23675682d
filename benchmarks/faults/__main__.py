"""`python -m benchmarks.faults`: a live fleet on two hosts, its parts struck at random, and what serving notices."""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import FrameType

from benchmarks.faults import books, claims
from benchmarks.faults.books import Books, Reader
from benchmarks.faults.claims import Asked, Seen, Served
from benchmarks.faults.fleet import Fleet, FleetError
from benchmarks.faults.plan import ENDS_OWN, Fault, Victim, endless, faults
from benchmarks.faults.processes import Watch
from benchmarks.faults.setting import HOSTS, Setting
from benchmarks.faults.trial import Striker, Trial
from rose.accept.report import Report, arguments, finish, phase
from rose.config import CoservingConfig
from rose.errors import UserError

#: Serving is watched for so long before the first fault.
_CALM_S = 30.0
_CALM_QUICK_S = 15.0
#: After the last fault its host may still be starting: what is not there cannot be ended in order.
_LAST_S = 300.0
_QUICK = (Victim.CONTROLLER, Victim.SCHEDULER, Victim.LINE)
_BOOKS_TIMEOUT_S = 300.0
_MEMORY_LOOK_S = 5.0
_INTERRUPTED = 130


def main() -> None:
    """Measure; the exit code is 0 when the measuring itself worked."""
    given = _arguments()
    report = Report("faults", given.quick)
    signal.signal(signal.SIGTERM, _leave)  # As Ctrl-C does: what was started is stopped.
    code = 0
    try:
        with tempfile.TemporaryDirectory(prefix="faults-benchmark-") as folder:
            try:
                measure(report, Path(folder), given)
            finally:
                if given.keep is not None:
                    # The logs of all parts, and what each host's disk holds.
                    shutil.copytree(folder, given.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except UserError as error:
        print(error, file=sys.stderr)
        code = 1
    finally:
        # What was measured before a part failed is worth having.
        finish(report, given.json)
    sys.exit(code)


def measure(report: Report, folder: Path, given: argparse.Namespace) -> None:
    """Start a fleet, strike it again and again, end it, and read its ledger."""
    victims = tuple(map(Victim, given.only)) if given.only else _QUICK if given.quick else tuple(Victim)
    trials = given.trials or (3 if given.quick else 100)
    report.detail["engines"] = given.engines
    struck: list[Trial] = []
    tried = 0
    ended = False
    until_s = time.monotonic() + (math.inf if given.minutes is None else 60 * given.minutes)
    fleet = Fleet(folder, given.seed, Setting(given.engines, given.patience))
    with phase("fleet"):
        fleet.__enter__()
    memory = Watch(fleet.hosts, lambda: 0, _MEMORY_LOOK_S)
    memory.start()
    reader = Reader(fleet.hosts["one"], fleet.ledger)
    try:
        striker = Striker(fleet, given.seed)
        with phase("calm before the first fault"):
            _calm(fleet, striker, _CALM_QUICK_S if report.quick else _CALM_S)
        with _last_trial() as enough:
            in_time = takewhile(
                lambda _: not enough.is_set() and time.monotonic() < until_s,
                _planned(trials, given.seed, victims, given.unbroken),
            )
            for number, fault in enumerate(in_time, 1):
                tried += 1
                begun = time.monotonic()
                trial = striker.strike(number, fault)
                if trial is None:
                    print(f"trial {number}: {fault}: could not be carried out", file=sys.stderr)
                    continue
                trial = replace(trial, wrong=tuple(_books_now(reader)))
                struck.append(trial)
                took_s = time.monotonic() - begun
                text = claims.line(_seen(fleet, struck, tried), trial)
                print(f"trial {number}, {took_s:.0f} s, {text}", file=sys.stderr, flush=True)
        _wait_lent(striker)
    except FleetError:
        ended = True
        raise
    finally:
        memory.stop()
        reader.stop()
        try:
            last = _end(fleet, given.ledger)
        finally:
            report.detail["ends"] = {service.name: service.codes for service in fleet.services}
            report.detail["steps"] = len(fleet.steps)
            fleet.__exit__()
        if struck:
            seen = replace(_seen(fleet, struck, tried), ended=ended, samples=memory.samples)
            claims.claim(report, seen, last)
            claims.show(seen)


@contextmanager
def _last_trial() -> Iterator[threading.Event]:
    """Set by SIGTERM: the trial that goes on is the last one. What it struck could not be ended in order before it is
    mended; a second SIGTERM ends it all the same."""
    enough = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if enough.is_set():
            _leave(number, frame)
        print("ends after this trial; asked once more, at once", file=sys.stderr, flush=True)
        enough.set()

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield enough
    finally:
        signal.signal(signal.SIGTERM, before)


def _planned(trials: int, seed: int, victims: tuple[Victim, ...], unbroken: float | None) -> Iterator[Fault]:
    """The faults of a run; those that spare controller and agents for `unbroken` minutes, and the others after that."""
    if unbroken is None:
        yield from faults(trials, seed, victims)
        return
    until = time.monotonic() + 60 * unbroken
    for fault in endless(seed, tuple(victim for victim in victims if victim not in ENDS_OWN)):
        if time.monotonic() >= until:
            break
        yield fault
    yield from faults(trials, seed, tuple(victim for victim in victims if victim in ENDS_OWN))


def _calm(fleet: Fleet, striker: Striker, seconds: float) -> None:
    """Wait until all is lent and served, and for a while more."""
    if not all(striker.wait_lending(host, 600.0) for host in HOSTS):
        raise FleetError("not every device was lent before the first fault")
    time.sleep(seconds)
    if not fleet.setting.made and {one["host"] for one in fleet.heard.served} != set(HOSTS):
        raise FleetError("no user of serving was answered on every host before the first fault")


def _wait_lent(striker: Striker) -> None:
    with phase("until all is lent again"):
        for host in HOSTS:
            striker.wait_lending(host, _LAST_S)


def _end(fleet: Fleet, keep: Path | None) -> Books | None:
    """End the fleet in order, and read its ledger; None if that cannot be done."""
    last: Books | None = None
    with phase("end"):
        try:
            fleet.stop()
        except FleetError as error:
            print(error, file=sys.stderr)
        try:
            last = _books(fleet)
        except (AssertionError, subprocess.TimeoutExpired, OSError) as error:
            print(f"the ledger cannot be read: {error}", file=sys.stderr)
        if keep is not None and fleet.hosts["one"].up:
            shutil.copytree(fleet.inside("one", fleet.ledger), keep, dirs_exist_ok=True)
    return last


def _books(fleet: Fleet) -> Books:
    return books.from_json(
        fleet.hosts["one"].call(
            sys.executable, "-m", "benchmarks.faults.books", fleet.ledger, timeout_s=_BOOKS_TIMEOUT_S
        )
    )


def _books_now(reader: Reader) -> list[str]:
    """What is wrong in the ledger by now."""
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
        controller=[Asked(**one) for one in list(heard.controller)],
        ttl_s=CoservingConfig().lease_ttl_s,
        planned=tried,
    )


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, help="faults; 100 if left out, 3 with --quick")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and of the traffic")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        help="times the demo's latency budgets and the wait for a part that comes back; 1 if left out",
    )
    parser.add_argument("--engines", choices=["sglang", "stand-in"], default="sglang", help="what serves and is lent")
    parser.add_argument("--minutes", type=float, help="begin no trial after this long")
    parser.add_argument(
        "--only", nargs="+", metavar="PART", choices=[str(victim) for victim in Victim], help="strike these parts alone"
    )
    parser.add_argument(
        "--unbroken",
        type=float,
        metavar="MINUTES",
        help="before the trials strike for so long what leaves controller and agents alive, and watch their memory",
    )
    parser.add_argument("--ledger", type=Path, metavar="FOLDER", help="keep the ledger there")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the hosts' disks there, with the logs of all parts"
    )
    return parser.parse_args()


def _leave(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
