"""Time of `record` for its caller, and events a second that reach the disk."""

import dataclasses
import itertools
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks import traffic
from benchmarks.shared import timed
from rose.accept.report import Report
from rose.event_columns import all_columns
from rose.events import Event, Lease
from rose.ledger.writer import LedgerWriter

RATE = 2000
ROUNDS = 5
BATCH = 1000  #: Events before DuckDB, SQLite and the durable form of the ledger wait for the disk.
EVENTS_PER_S_MIN = 5_000  #: A host of 8 devices writes 21 events a second, a controller of 200 turns a second some 600.

Way = Callable[[Sequence[Event]], object]


def measure(report: Report, folder: Path) -> None:
    seconds, durable = (0.6, 20) if report.quick else (4.0, 200)
    queued: list[Any] = []
    taken: dict[str, list[Any]] = {}
    numbers = itertools.count()
    with (
        LedgerWriter.open(folder / "ledger", "benchmark", "r", "simulated") as writer,
        closing(_sqlite(folder / "sqlite.db")) as sqlite,
    ):
        sqlite.execute("CREATE TABLE lease (at_us, lease_id, device_id, engine_id, action, budget, share, expires)")
        row = (1, "r-gpu000-1", "gpu000", "gpu000-rollout", "granted", 8 << 30, 1.0, 1)
        ways: dict[str, Callable[[int], object]] = {
            "durable": lambda number: writer.record(_lease(number)),
            "sqlite_wal_full": lambda _: sqlite.execute("INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row),
        }
        for _ in range(ROUNDS):
            queued.append(paced(writer, seconds))
            for name, act in ways.items():
                taken.setdefault(name, []).append(_each([next(numbers) for _ in range(durable)], act))
    every = {"queued": queued, **taken}
    report.detail["record_ms"] = {name: _percentiles(np.concatenate(rounds)) for name, rounds in every.items()}
    report.claim("record() at 2,000 events/s, p50", _p(50, queued) / 1e3, "us", 15, "lower")
    if not report.quick:
        report.claim("record() at 2,000 events/s, p99", _p(99, queued) / 1e3, "us", 50, "lower")
    report.claim("durable record(), p50", _p(50, taken["durable"]) / 1e6, "ms", 5, "lower")


def measure_throughput(report: Report, folder: Path) -> None:
    """Count events a second from Python objects until the last is on disk."""
    seconds = 60 if report.quick else 900
    events = traffic.Fleet(16, seconds).batch(0, 0, seconds)
    taken: dict[str, list[float]] = {}
    with LedgerWriter.open(folder / "ledger", "benchmark", "r", "simulated") as writer:
        ways: dict[str, Way] = {
            "ledger": partial(traffic.record, writer),
            "ledger, each batch durable": lambda events: [traffic.record(writer, part) for part in _batches(events)],
            "duckdb INSERT": _duckdb_way(folder / "events.duckdb"),
            "sqlite WAL": _sqlite_way(folder / "events.sqlite"),
        }
        for _ in range(ROUNDS):
            for name, way in ways.items():
                taken.setdefault(name, []).append(len(events) / timed(partial(way, events))[1])
    rates = {name: float(np.median(rounds)) for name, rounds in taken.items()}
    report.detail["throughput"] = {"events": len(events), "batch": BATCH, "events_per_s": taken}
    report.claim("events/s of one writer, until on disk", rates["ledger"], "events/s", EVENTS_PER_S_MIN, "higher")
    durable = rates["ledger, each batch durable"]
    for other, text in (("duckdb INSERT", "DuckDB's INSERT from Arrow"), ("sqlite WAL", "SQLite's WAL")):
        report.claim(f"  by the thousand, against {text}", durable / rates[other], "x", 1, "higher")


def paced(writer: LedgerWriter, seconds: float) -> Any:
    """Return the nanoseconds of each `record` at RATE events a second, int64[events]."""
    count = int(RATE * seconds)
    taken = np.zeros(count, dtype=np.int64)
    began = time.perf_counter_ns()
    for number in range(count):
        event = traffic.turn(number)
        due = began + number * 1_000_000_000 // RATE
        while (now := time.perf_counter_ns()) < due:
            # Sleeping through the longer waits leaves the interpreter to other threads, as the runtime does.
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
    return float(np.median([np.percentile(one, point) for one in rounds]))


def _each(numbers: list[int], act: Callable[[int], object]) -> Any:
    taken = np.zeros(len(numbers), dtype=np.int64)
    for index, number in enumerate(numbers):
        before = time.perf_counter_ns()
        act(number)
        taken[index] = time.perf_counter_ns() - before
    return taken


def _percentiles(taken: Any) -> dict[str, float]:
    return {f"p{point:g}": round(float(np.percentile(taken, point)) / 1e6, 6) for point in (50, 90, 99, 99.9, 100)}


def _batches(events: Sequence[Event]) -> list[Sequence[Event]]:
    return [events[first : first + BATCH] for first in range(0, len(events), BATCH)]


def _rows(events: Sequence[Event]) -> list[dict[str, Any]]:
    rows = []
    for event in events:
        values = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
        rows.append({"kind": event.kind, "provenance": "simulated", **values})
    return rows


def _duckdb_way(path: Path) -> Way:
    connection = duckdb.connect(path)
    columns = ", ".join(f'"{name}" {sql_type}' for name, sql_type in all_columns().items())
    connection.execute(f"CREATE TABLE event ({columns})")

    def write(events: Sequence[Event]) -> None:
        for part in _batches(events):
            rows = _rows(part)
            names = {name: None for row in rows for name in row}
            connection.register("batch", pa.table({name: [row.get(name) for row in rows] for name in names}))
            # Each statement is a transaction, on disk when it returns.
            connection.execute("INSERT INTO event BY NAME SELECT * FROM batch")
            connection.unregister("batch")

    return write


def _sqlite_way(path: Path) -> Way:
    connection = _sqlite(path)
    names = list(all_columns())
    columns = ", ".join(f'"{name}"' for name in names)
    connection.execute(f"CREATE TABLE event ({columns})")
    insert = f"INSERT INTO event VALUES ({', '.join('?' * len(names))})"

    def write(events: Sequence[Event]) -> None:
        for part in _batches(events):
            connection.execute("BEGIN")
            connection.executemany(insert, [[row.get(name) for name in names] for row in _rows(part)])
            connection.execute("COMMIT")

    return write


def _sqlite(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    # FULL: a commit is on disk when it returns, which NORMAL does not promise.
    connection.execute("PRAGMA synchronous = FULL")
    return connection
