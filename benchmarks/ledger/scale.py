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
from benchmarks.report import Report
from rose.ledger import catalog, layout, verified
from rose.ledger.examine import Seen
from rose.ledger.growth.compaction import compact
from rose.ledger.growth.rollup import roll_up
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter

#: What the dashboard asks of a run first.
ROLLUPS = ("time_totals", "device_time", "latency", "preemption_bins", "learning")
BATCH = 10_000
T = TypeVar("T")


def measure(report: Report, folder: Path) -> None:
    """Fill a ledger, compact it, and ask it everything a page asks, each a few times."""
    events = 200_000 if report.quick else 10_000_000
    root = folder / "ledger"
    rng = np.random.default_rng(2)
    # Four writers, as four hosts would be.
    for part in range(4):
        with LedgerWriter.open(root, f"host-{part}", "r", "simulated") as writer:
            if part == 0:
                traffic.begin(writer.record)
            for first in range(part * events // 4, (part + 1) * events // 4, BATCH):
                writer.append(traffic.batch(first, BATCH, rng), durable=False)
        # A second life closes the first one's last epoch.
        _close_epoch(root, f"host-{part}")
    written = _bytes(root / "live")
    _, compact_s = _timed(lambda: compact(root, grace_s=0))
    compact(root, grace_s=0)
    kept = _bytes(root / "compacted")
    report.claim("bytes an event after compaction", kept / events, "B", 45, "lower")
    opened = [_timed(lambda: catalog.connect(root).close())[1] for _ in range(20)]
    report.claim("catalog open, median", 1e3 * statistics.median(opened), "ms", 50, "lower")
    seen = Seen()
    whole, verify_s = _timed(lambda: verify(root, seen=seen))
    assert whole.ok, whole.problems
    report.claim("verify, 10 million events", verify_s, "s", 15, "lower")
    verified.save(root, seen)
    with LedgerWriter.open(root, "host-0", "r", "simulated") as writer:
        writer.append(traffic.batch(events, BATCH, rng))
    again, again_s = _timed(lambda: verify(root, seen=verified.load(root)))
    assert again.ok, again.problems
    report.claim("  again, with one new segment", 1e3 * again_s, "ms", 100, "lower")
    taken = {name: min(_page(root, name) for _ in range(3)) for name in ROLLUPS}
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
        "verify_s": round(verify_s, 2),
        "dashboard_s": {name: round(seconds, 3) for name, seconds in taken.items()},
        "daily_s": {name: round(seconds, 3) for name, seconds in daily.items()},
    }


def _close_epoch(root: Path, writer: str) -> None:
    from rose.ledger import segments

    tail = segments.recover(root, writer)
    assert tail is not None
    segments.begin_epoch(root, tail)
    catalog.refresh(root)


def _page(root: Path, name: str) -> float:
    """Seconds for a query of the dashboard as its page runs it, the connection included."""

    def ask() -> None:
        with catalog.connect(root) as connection:
            connection.execute("SET VARIABLE run_id = 'r'")
            connection.execute(f"SET VARIABLE period_end_ns = {time.time_ns()}")
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
