"""Ten million events: bytes each, and how long opening, verifying, a receipt and the dashboard's questions take."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import sql
from benchmarks import traffic
from benchmarks.shared import timed
from benchmarks.traffic import Fleet
from rose.accept.report import Report
from rose.ledger import catalog, layout
from rose.ledger.evidence import receipt as receipts
from rose.ledger.growth.compaction import compact
from rose.ledger.growth.rollup import roll_up
from rose.ledger.verify import Report as Verification
from rose.ledger.verify import verify, verify_changed

#: What the dashboard asks of a run first.
QUESTIONS = ("devices", "device_states", "leases", "latency", "preemptions")
#: Of ten million events, and with `--quick` of a fifth of a million.
FLEET, FLEET_QUICK = Fleet(128, 30_000), Fleet(16, 5_000)
BATCH = 10_000
#: What depends on the machine's other work is measured so often, and the median counts.
ROUNDS, ROUNDS_FULL = 5, 3
#: New segments before each receipt, as of a writer that flushes every two seconds for five minutes.
RECEIPTS, SEGMENTS_BETWEEN = 7, 150


def measure(report: Report, folder: Path) -> None:
    """Fill a ledger, compact it, and ask it everything a page asks, each a few times."""
    fleet = FLEET_QUICK if report.quick else FLEET
    root = folder / "ledger"
    events = fleet.fill(root)
    traffic.close_epochs(root)
    written = _bytes(root / "live")
    _, compact_s = timed(lambda: compact(root, grace_s=0))
    compact(root, grace_s=0)
    kept = _bytes(root / "compacted")
    report.claim("bytes an event after compaction", kept / events, "B", 45, "lower")
    opened = [timed(lambda: catalog.connect(root).close())[1] for _ in range(20)]
    report.claim("catalog open, median", 1e3 * statistics.median(opened), "ms", 50, "lower")
    verify_s = [_sound(verify, root) for _ in range(ROUNDS_FULL)]
    report.claim(f"verify, {events / 1e6:.3g} million events", statistics.median(verify_s), "s", 15, "lower")
    again_s = []
    with traffic.writers(root) as hosts:
        # Their lives begin with epochs of their own, which the views name.
        _sound(verify_changed, root)
        for number in range(ROUNDS):
            seconds = max(1, BATCH * fleet.seconds // events)
            fleet.go_on(hosts[:1], fleet.seconds + number * seconds, seconds)
            again_s.append(_sound(verify_changed, root))
    report.claim("  again, with one new segment", 1e3 * statistics.median(again_s), "ms", 100, "lower")
    taken = {name: min(page_s(root, fleet, name) for _ in range(3)) for name in QUESTIONS}
    for name, seconds_taken in taken.items():
        report.claim(f"dashboard's {name}", seconds_taken, "s", 1, "lower")
    _, roll_up_s = timed(lambda: roll_up(root))
    daily = {
        name: min(_select_s(root, f"FROM {name}") for _ in range(3)) for name in ("daily_device_time", "daily_request")
    }
    report.detail["scale"] = {
        "events": events,
        "bytes_per_event_live": round(written / events, 1),
        "bytes_per_event_compacted": round(kept / events, 1),
        "files": len(list(root.glob("compacted/*/*.parquet"))) + len(list(root.glob("live/*/*/*.parquet"))),
        "compact_s": round(compact_s, 1),
        "roll_up_s": round(roll_up_s, 1),
        "open_ms": [round(1e3 * seconds, 1) for seconds in opened],
        "verify_s": [round(seconds, 2) for seconds in verify_s],
        "verify_again_ms": [round(1e3 * seconds, 1) for seconds in again_s],
        "dashboard_s": {name: round(seconds, 3) for name, seconds in taken.items()},
        "daily_s": {name: round(seconds, 3) for name, seconds in daily.items()},
    }


def measure_receipt(report: Report, folder: Path) -> None:
    """Receipts by the command itself, each after new segments of one writer, of the ledger that `measure` made."""
    fleet = FLEET_QUICK if report.quick else FLEET
    root = folder.parent / "scale" / "ledger"
    if not root.exists():
        root = folder / "ledger"
        fleet.fill(root)
    taken_s = []
    with traffic.writers(root) as hosts:
        for number in range(1 if report.quick else RECEIPTS):
            for segment in range(SEGMENTS_BETWEEN):
                traffic.record(hosts[0], [traffic.turn(number * SEGMENTS_BETWEEN + segment)])
            out = folder / f"receipt-{number}.json"
            command = [sys.executable, "-m", "rose.cli", "ledger", "receipt", "--ledger", str(root), "--out", str(out)]
            done, seconds = timed(lambda: subprocess.run(command, capture_output=True, text=True, check=False))  # noqa: B023
            taken_s.append(seconds)
            assert done.returncode == 0, done.stderr
    report.claim("rose ledger receipt", statistics.median(taken_s), "s", 1, "lower")
    report.detail["receipt"] = {
        "events": receipts.take(root).events,
        "segments_between": SEGMENTS_BETWEEN,
        "rounds_s": [round(seconds, 3) for seconds in taken_s],
    }


def _sound(check: Callable[[Path], Verification], root: Path) -> float:
    """Seconds that a verification takes, which finds nothing wrong."""
    found, seconds = timed(lambda: check(root))
    assert found.ok, found.problems
    return seconds


def page_s(root: Path, fleet: Fleet, name: str) -> float:
    """Seconds for a query of the dashboard as its page runs it, the connection included."""

    def ask() -> None:
        with catalog.connect(root) as connection:
            connection.execute(f"SET VARIABLE run_id = '{traffic.RUN}'")
            connection.execute(f"SET VARIABLE period_end_ns = {time.time_ns()}")
            connection.execute(f"SET VARIABLE from_ns = {fleet.start_ns}")
            connection.execute(f"SET VARIABLE to_ns = {2**62}")
            connection.execute("SET VARIABLE blocks = 200")
            assert connection.execute(sql.read(f"dashboard/{name}.sql")).fetchall()

    return timed(ask)[1]


def _select_s(root: Path, select: str) -> float:
    def ask() -> None:
        with catalog.connect(root) as connection:
            assert connection.execute(select).fetchall()

    return timed(ask)[1]


def _bytes(folder: Path) -> int:
    layout.sync_folder(folder)
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))
