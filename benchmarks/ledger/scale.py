"""Ten million events: bytes each, and how long opening, verifying and the dashboard's roll-ups take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

import sql
from benchmarks.ledger import traffic
from rose.accept.report import Report
from rose.ledger import catalog, layout
from rose.ledger.growth.compaction import compact
from rose.ledger.growth.rollup import roll_up
from rose.ledger.verify import verify, verify_changed
from rose.ledger.writer import LedgerWriter

#: What the dashboard asks of a run first.
ROLLUPS = ("devices", "device_states", "leases", "latency", "preemptions")
EVENTS, EVENTS_QUICK = 10_000_000, 200_000
BATCH = 10_000
#: What depends on the machine's other work is measured so often, and the median counts.
ROUNDS, ROUNDS_FULL = 5, 3
T = TypeVar("T")


def measure(report: Report, folder: Path) -> None:
    """Fill a ledger, compact it, and ask it everything a page asks, each a few times."""
    events = EVENTS_QUICK if report.quick else EVENTS
    root = folder / "ledger"
    rng = np.random.default_rng(3)
    fill(root, events)
    written = _bytes(root / "live")
    _, compact_s = _timed(lambda: compact(root, grace_s=0))
    compact(root, grace_s=0)
    kept = _bytes(root / "compacted")
    report.claim("bytes an event after compaction", kept / events, "B", 45, "lower")
    opened = [_timed(lambda: catalog.connect(root).close())[1] for _ in range(20)]
    report.claim("catalog open, median", 1e3 * statistics.median(opened), "ms", 50, "lower")
    verify_s, verify_processor_s = _verified_whole(root, ROUNDS_FULL)
    report.claim(f"verify, {events / 1e6:g} million events", statistics.median(verify_s), "s", 15, "lower")
    again_s = []
    with LedgerWriter.open(root, "host-0", "r", "simulated") as writer:
        # Its life begins with an epoch of its own, which the views name.
        _verified_on(root)
        for number in range(ROUNDS):
            writer.append(traffic.batch(events + number * BATCH, BATCH, rng))
            again_s.append(_verified_on(root))
    report.claim("  again, with one new segment", 1e3 * statistics.median(again_s), "ms", 100, "lower")
    taken = {name: min(page_s(root, name) for _ in range(3)) for name in ROLLUPS}
    for name, seconds in taken.items():
        report.claim(f"dashboard's {name}", seconds, "s", 1, "lower")
    _, roll_up_s = _timed(lambda: roll_up(root))
    daily = {
        name: min(_select(root, f"FROM {name}") for _ in range(3)) for name in ("daily_device_time", "daily_request")
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
        "verify_processor_s": [round(seconds, 2) for seconds in verify_processor_s],
        "verify_again_ms": [round(1e3 * seconds, 1) for seconds in again_s],
        "dashboard_s": {name: round(seconds, 3) for name, seconds in taken.items()},
        "daily_s": {name: round(seconds, 3) for name, seconds in daily.items()},
    }


def fill(root: Path, events: int) -> None:
    """Make a ledger of so many events, of four writers, as four hosts would be."""
    rng = np.random.default_rng(2)
    for part in range(4):
        with LedgerWriter.open(root, f"host-{part}", "r", "simulated") as writer:
            if part == 0:
                traffic.begin(writer.record)
            for first in range(part * events // 4, (part + 1) * events // 4, BATCH):
                writer.append(traffic.batch(first, BATCH, rng), durable=False)
        # A second life closes the first one's last epoch.
        _close_epoch(root, f"host-{part}")


def _verified_whole(root: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds, and those of the processor, that each verification of every byte took."""
    taken, worked = [], []
    for _ in range(rounds):
        before = time.process_time()
        whole, seconds = _timed(lambda: verify(root))
        assert whole.ok, whole.problems
        taken.append(seconds)
        worked.append(time.process_time() - before)
    return taken, worked


def _verified_on(root: Path) -> float:
    """Seconds that a verification takes that reads what is new since the last one."""
    again, seconds = _timed(lambda: verify_changed(root))
    assert again.ok, again.problems
    return seconds


def _close_epoch(root: Path, writer: str) -> None:
    from rose.ledger import segments

    tail = segments.recover(root, writer)
    assert tail is not None
    segments.begin_epoch(root, tail)
    catalog.refresh(root)


def page_s(root: Path, name: str) -> float:
    """Seconds for a query of the dashboard as its page runs it, the connection included."""

    def ask() -> None:
        with catalog.connect(root) as connection:
            connection.execute("SET VARIABLE run_id = 'r'")
            connection.execute(f"SET VARIABLE period_end_ns = {time.time_ns()}")
            connection.execute(f"SET VARIABLE from_ns = {traffic.EPOCH_US * 1000}")
            connection.execute(f"SET VARIABLE to_ns = {2**62}")
            connection.execute("SET VARIABLE blocks = 200")
            assert connection.execute(sql.read(f"dashboard/{name}.sql")).fetchall()

    return _timed(ask)[1]


def _select(root: Path, select: str) -> float:
    def ask() -> None:
        with catalog.connect(root) as connection:
            assert connection.execute(select).fetchall()

    return _timed(ask)[1]


def _timed(act: Callable[[], T]) -> tuple[T, float]:
    before = time.perf_counter()
    result = act()
    return result, time.perf_counter() - before


def _bytes(folder: Path) -> int:
    layout.sync_folder(folder)
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))
