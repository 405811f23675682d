"""Ten million events: bytes each, and times to open, verify and query."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import sql
from benchmarks import traffic
from benchmarks.shared import output, timed
from benchmarks.traffic import Fleet
from rose.accept.report import Report
from rose.ledger.evidence import receipt as receipts
from rose.ledger.files import catalog, layout
from rose.ledger.growth.compaction import compact
from rose.ledger.ledger import Ledger
from rose.ledger.verify import Report as Verification

QUESTIONS = ("devices", "device_states", "leases", "latency", "preemptions")
#: Ten million events, and with `--quick` a fifth of a million.
FLEET, FLEET_QUICK = Fleet(128, 30_000), Fleet(16, 5_000)
BATCH = 10_000
ROUNDS, ROUNDS_FULL = 5, 3  #: The machine's other work affects these measurements: the median of the rounds counts.
#: New segments before each receipt, as of a writer that flushes every two seconds for five minutes.
RECEIPTS, SEGMENTS_BETWEEN = 7, 150
_RECEIPT = ("rose.cli", "ledger", "receipt")


def measure(report: Report, folder: Path) -> None:
    fleet = FLEET_QUICK if report.quick else FLEET
    root = folder / "ledger"
    events = fleet.fill(root)
    traffic.close_epochs(root)
    compact(Ledger(root), grace_s=0)
    compact(Ledger(root), grace_s=0)
    layout.sync_folder(root / "compacted")
    kept = sum(path.stat().st_size for path in (root / "compacted").rglob("*.parquet"))
    report.claim("bytes an event after compaction", kept / events, "B", 45, "lower")
    opened = [timed(lambda: catalog.connect(root).close())[1] for _ in range(20)]
    report.claim("catalog open, median", 1e3 * statistics.median(opened), "ms", 50, "lower")
    verify_s = [_sound(Ledger.verify, root) for _ in range(ROUNDS_FULL)]
    report.claim(f"verify, {events / 1e6:.3g} million events", statistics.median(verify_s), "s", 15, "lower")
    again_s = []
    with traffic.writers(root) as hosts:
        _sound(Ledger.verify_changed, root)  # Opening the writers begins new epochs.
        for number in range(ROUNDS):
            seconds = max(1, BATCH * fleet.seconds // events)
            fleet.go_on(hosts[:1], fleet.seconds + number * seconds, seconds)
            again_s.append(_sound(Ledger.verify_changed, root))
    report.claim("  again, with one new segment", 1e3 * statistics.median(again_s), "ms", 100, "lower")
    taken = {name: min(page_s(root, fleet, name) for _ in range(3)) for name in QUESTIONS}
    for name, seconds_taken in taken.items():
        report.claim(f"dashboard's {name}", seconds_taken, "s", 1, "lower")
    report.detail["scale"] = {"events": events, "open_s": opened, "verify_s": verify_s, "verify_again_s": again_s}


def measure_receipt(report: Report, folder: Path) -> None:
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
            taken_s.append(timed(partial(output, *_RECEIPT, "--ledger", root, "--out", out))[1])
    report.claim("rose ledger receipt", statistics.median(taken_s), "s", 1, "lower")
    report.detail["receipt"] = {
        "events": receipts.take(Ledger(root)).events,
        "segments_between": SEGMENTS_BETWEEN,
        "rounds_s": [round(seconds, 3) for seconds in taken_s],
    }


def _sound(check: Callable[[Ledger], Verification], root: Path) -> float:
    outcome, seconds = timed(lambda: check(Ledger(root)))
    assert outcome.ok, outcome.problems
    return seconds


def page_s(root: Path, fleet: Fleet, name: str) -> float:
    def ask() -> None:
        with catalog.connect(root) as connection:
            connection.execute(f"SET VARIABLE run_id = '{traffic.RUN}'")
            connection.execute(f"SET VARIABLE period_end_ns = {time.time_ns()}")
            connection.execute(f"SET VARIABLE from_ns = {fleet.start_ns}")
            connection.execute(f"SET VARIABLE to_ns = {2**62}")
            connection.execute("SET VARIABLE blocks = 200")
            assert connection.execute(sql.read(f"dashboard/{name}.sql")).fetchall()

    return timed(ask)[1]
