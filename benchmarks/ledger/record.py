"""What `record` costs its caller: at a steady rate, and when the caller waits for the disk.

Each way is measured in rounds, by turns with the others, and a claim is the median of the rounds: what else the machine
does then falls on all of them.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ledger import traffic
from rose.accept.report import Report
from rose.events import Lease
from rose.ledger.writer import LedgerWriter

RATE = 2000
ROUNDS = 5
#: Of a segment with one event.
SEGMENT_BYTES = 4096


def measure(report: Report, folder: Path) -> None:
    """Latency of `record`, queued at RATE events a second and durable one by one; SQLite's durable commit beside it."""
    seconds, durable = (0.6, 20) if report.quick else (4.0, 200)
    (folder / "disk").mkdir()
    queued: list[Any] = []
    taken: dict[str, list[Any]] = {}
    numbers = itertools.count()
    with (
        LedgerWriter.open(folder / "ledger", "benchmark", "r", "simulated") as writer,
        closing(_sqlite(folder / "sqlite.db")) as sqlite,
    ):
        row = (1, "r-gpu000-1", "gpu000", "gpu000-rollout", "granted", 8 << 30, 1.0, 1)
        ways: dict[str, Callable[[int], object]] = {
            "durable": lambda number: writer.record(_lease(number)),
            "disk_alone": lambda number: write_lasting(folder / "disk" / f"{number}"),
            "sqlite_wal_full": lambda _: sqlite.execute("INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row),
        }
        for _ in range(ROUNDS):
            queued.append(paced(writer, seconds))
            for name, act in ways.items():
                taken.setdefault(name, []).append(_each([next(numbers) for _ in range(durable)], act))
    report.detail["record"] = {
        "rate_per_s": RATE,
        "rounds": ROUNDS,
        "queued_us": _percentiles(np.concatenate(queued), 1e3),
        "queued_p99_us_by_round": [round(float(np.percentile(one, 99)) / 1e3, 1) for one in queued],
        **{f"{name}_ms": _percentiles(np.concatenate(rounds), 1e6) for name, rounds in taken.items()},
        **{
            f"{name}_p50_ms_by_round": [round(_p(50, [one]) / 1e6, 2) for one in rounds]
            for name, rounds in taken.items()
        },
    }
    report.claim("record() at 2,000 events/s, p50", _p(50, queued) / 1e3, "us", 15, "lower")
    if not report.quick:
        report.claim("record() at 2,000 events/s, p99", _p(99, queued) / 1e3, "us", 50, "lower")
    report.claim("durable record(), p50", _p(50, taken["durable"]) / 1e6, "ms", 5, "lower")


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


def _p(point: float, rounds: list[Any]) -> float:
    """The median over the rounds of a percentile of each, nanoseconds."""
    return float(np.median([np.percentile(one, point) for one in rounds]))


def _each(numbers: list[int], act: Callable[[int], object]) -> Any:
    taken = np.zeros(len(numbers), dtype=np.int64)
    for index, number in enumerate(numbers):
        before = time.perf_counter_ns()
        act(number)
        taken[index] = time.perf_counter_ns() - before
    return taken


def _sqlite(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    # FULL: a commit is on disk when it returns, which NORMAL does not promise.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE lease (at_us, lease_id, device_id, engine_id, action, budget, share, expires)")
    return connection


def _percentiles(taken: Any, unit: float) -> dict[str, float]:
    return {f"p{point:g}": round(float(np.percentile(taken, point)) / unit, 3) for point in (50, 90, 99, 99.9, 100)}


def write_lasting(path: Path) -> None:
    """Write a file of SEGMENT_BYTES so that it outlasts a power cut: one fsync of its content, one of its name.

    This is the least that any ledger of immutable files waits for.
    """
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(bytes(SEGMENT_BYTES))
    _sync(temporary)
    temporary.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
