"""What `record` costs its caller: at a steady rate, and when the caller waits for the disk."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ledger import traffic
from benchmarks.report import Report
from rose.events import Lease
from rose.ledger.writer import LedgerWriter

RATE = 2000


def measure(report: Report, folder: Path) -> None:
    """Latency of `record`, queued at RATE events a second and durable one by one; SQLite's durable commit beside it."""
    seconds, durable = (3, 100) if report.quick else (20, 1000)
    with LedgerWriter.open(folder / "ledger", "benchmark", "r", "simulated") as writer:
        queued = paced(writer, seconds)
        committed = _each(durable, lambda number: writer.record(_lease(number)))
    sqlite = _sqlite(folder / "sqlite.db", durable)
    report.detail["record"] = {
        "rate_per_s": RATE,
        "queued_us": _percentiles(queued, 1e3),
        "durable_ms": _percentiles(committed, 1e6),
        "sqlite_wal_full_durable_ms": _percentiles(sqlite, 1e6),
    }
    report.claim("record() at 2,000 events/s, p50", float(np.percentile(queued, 50)) / 1e3, "us", 15, "lower")
    if not report.quick:
        report.claim("record() at 2,000 events/s, p99", float(np.percentile(queued, 99)) / 1e3, "us", 50, "lower")
    report.claim("durable record(), p50", float(np.percentile(committed, 50)) / 1e6, "ms", 5, "lower")


def paced(writer: LedgerWriter, seconds: float) -> Any:
    """Nanoseconds that each `record` took at RATE events a second, int64[events]."""
    count = int(RATE * seconds)
    taken = np.zeros(count, dtype=np.int64)
    began = time.perf_counter_ns()
    for number in range(count):
        event = traffic.turn(number)
        due = began + number * 1_000_000_000 // RATE
        while (now := time.perf_counter_ns()) < due:
            # Sleep through the longer waits, so that other threads find the interpreter free as they would.
            if due - now > 300_000:
                time.sleep(0.0001)
        before = time.perf_counter_ns()
        writer.record(event)
        taken[number] = time.perf_counter_ns() - before
    return taken


def _lease(number: int) -> Lease:
    return Lease(
        action="granted",
        lease_id=f"r-gpu000-{number}",
        device_id="gpu000",
        engine_id="gpu000-rollout",
        kv_budget_bytes=8 << 30,
        compute_share=1.0,
        expires_at_us=1,
    )


def _each(count: int, act: Callable[[int], object]) -> Any:
    taken = np.zeros(count, dtype=np.int64)
    for number in range(count):
        before = time.perf_counter_ns()
        act(number)
        taken[number] = time.perf_counter_ns() - before
    return taken


def _sqlite(path: Path, count: int) -> Any:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    # FULL: a commit is on disk when it returns, which NORMAL does not promise.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE lease (at_us, lease_id, device_id, engine_id, action, budget, share, expires)")
    row = (1, "r-gpu000-1", "gpu000", "gpu000-rollout", "granted", 8 << 30, 1.0, 1)
    taken = _each(count, lambda _: connection.execute("INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row))
    connection.close()
    return taken


def _percentiles(taken: Any, unit: float) -> dict[str, float]:
    return {f"p{point:g}": round(float(np.percentile(taken, point)) / unit, 3) for point in (50, 90, 99, 99.9, 100)}
