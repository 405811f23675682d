"""`python -m benchmarks.faults`: a live deployment whose processes are killed at random, and what serving notices."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.faults import books, claims
from benchmarks.faults.clients import Clients
from benchmarks.faults.fleet import Fleet, FleetError
from benchmarks.faults.plan import faults
from benchmarks.faults.trial import Striker, Trial
from benchmarks.faults.watch import PageWatch
from benchmarks.report import Report, arguments, finish, phase
from rose import config as configuration
from rose.errors import UserError

#: Beside the RL loop's own: what keeps the device wanted while it trains.
_TURNS = 32
#: Serving is watched for so long before the first fault.
_CALM_S = 20.0
_CALM_QUICK_S = 5.0
_INTERRUPTED = 130


def main() -> None:
    """Measure; the exit code is 0 when the measuring itself worked."""
    given = _arguments()
    report = Report("faults", given.quick)
    signal.signal(signal.SIGTERM, _leave)  # As Ctrl-C does: what was started is stopped.
    trials = 3 if given.quick else given.trials
    code = 0
    try:
        with tempfile.TemporaryDirectory(prefix="faults-benchmark-") as folder:
            measure(report, given.ledger or Path(folder) / "ledger", trials, given.seed, given.minutes)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except UserError as error:
        print(error, file=sys.stderr)
        code = 1
    finally:
        # What was measured before a part failed is worth having.
        finish(report, given.json)
    sys.exit(code)


def measure(report: Report, ledger: Path, trials: int, seed: int, minutes: float | None = None) -> None:
    """Start a deployment, strike it again and again, stop it, and read its ledger."""
    config = configuration.demo(sorted(os.sched_getaffinity(0)), ledger=ledger)
    struck: list[Trial] = []
    pids: list[int] = []
    fleet, watch, clients = Fleet(ledger), None, None
    planned = faults(trials, seed)
    available = os.sched_getaffinity(0)
    began = time.monotonic()
    ended = False
    try:
        with phase("deployment"):
            fleet.__enter__()
        _leave_serving_alone(config.device[0].cores)
        watch = PageWatch(fleet.page)
        clients = Clients(fleet.serving_url, fleet.gateway_url, _TURNS, config.serving, seed)
        striker = Striker(fleet, watch)
        watch.start()
        clients.start()
        with phase("calm before the first fault"):
            if not striker.wait_lending():
                raise FleetError("nothing was lent before the first fault")
            time.sleep(_CALM_QUICK_S if report.quick else _CALM_S)
        for number, fault in enumerate(planned, 1):
            if minutes is not None and time.monotonic() - began > 60 * minutes:
                break
            trial = striker.strike(number, fault)
            serving = fleet.serving()
            pids.append(0 if serving is None else serving.pid)
            if trial is None:
                print(f"trial {number} of {trials}: {fault}: could not be carried out", file=sys.stderr, flush=True)
                continue
            struck.append(trial)
            seen = _seen(struck, watch, clients, pids, config.coserving.lease_ttl_s)
            print(f"trial {number} of {trials}, {claims.line(seen, trial)}", file=sys.stderr, flush=True)
    except FleetError:
        ended = True
        raise
    finally:
        if clients is not None:
            clients.stop()
        if watch is not None:
            watch.stop()
        with phase("stopping"):
            fleet.stop()
        os.sched_setaffinity(0, available)
        report.detail["deployment"] = [line for line in fleet.lines if " died " in line or "step" in line][-200:]
        if watch is not None and clients is not None and struck:
            seen = _seen(struck, watch, clients, pids, config.coserving.lease_ttl_s)
            seen = replace(seen, planned=len(pids) + ended, ended=ended)
            claims.claim(report, seen, books.read(ledger, config.name))


def _seen(struck: list[Trial], watch: PageWatch, clients: Clients, pids: list[int], ttl_s: float) -> claims.Seen:
    return claims.Seen(
        trials=list(struck), leases=list(watch.leases), work=list(watch.work), served=list(clients.served),
        health=list(clients.health), serving_pids=list(pids), ttl_s=ttl_s, planned=0,
    )  # fmt: skip


def _leave_serving_alone(cores: list[int]) -> None:
    """Keep this process off serving's cores: its clients are somewhere else."""
    others = os.sched_getaffinity(0) - set(cores)
    if others:
        os.sched_setaffinity(0, others)


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, default=100, help="faults; 100 if left out, 3 with --quick")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and of the traffic")
    parser.add_argument("--minutes", type=float, help="begin no trial after this long")
    parser.add_argument("--ledger", type=Path, metavar="FOLDER", help="keep the ledger there")
    return parser.parse_args()


def _leave(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
