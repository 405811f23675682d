"""Events a second in batches, each way made durable: ROSE's ledger, DuckDB's INSERT from Arrow, SQLite's WAL."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.ledger import traffic
from rose.accept.report import Report
from rose.event_columns import all_columns
from rose.ledger.writer import LedgerWriter

BATCH = 1000
#: The three ways take turns this often, so that a slow moment of the machine falls on all of them.
ROUNDS = 5

Way = Callable[[list[pa.Table]], None]


def measure(report: Report, folder: Path) -> None:
    """Sustained events a second in batches of a thousand, until the last is on disk."""
    per_round = 20_000 if report.quick else 400_000
    rng = np.random.default_rng(1)
    batches = [traffic.batch(first, BATCH, rng) for first in range(0, per_round, BATCH)]
    taken: dict[str, list[float]] = {}
    #: The same by the processor's time: what a machine that does nothing else would come to on one core.
    worked: dict[str, list[float]] = {}
    with LedgerWriter.open(folder / "ledger", "benchmark", "r", "simulated") as writer:
        ways = {
            "ledger": _ledger(writer, durable=False),
            "ledger, each batch durable": _ledger(writer, durable=True),
            "duckdb INSERT": _duckdb(folder / "events.duckdb"),
            "sqlite WAL": _sqlite(folder / "events.sqlite"),
        }
        for _ in range(ROUNDS):
            for name, way in ways.items():
                # SQLite is an order slower: a part tells as much.
                given = batches[: len(batches) // 10] if name == "sqlite WAL" else batches
                before, worked_before = time.perf_counter(), time.process_time()
                way(given)
                events = BATCH * len(given)
                taken.setdefault(name, []).append(events / (time.perf_counter() - before))
                worked.setdefault(name, []).append(events / (time.process_time() - worked_before))
    rates = {name: float(np.median(each)) for name, each in taken.items()}
    report.detail["throughput"] = {
        "batch": BATCH,
        "events_per_s": {name: round(rate) for name, rate in rates.items()},
        "events_per_processor_s": {name: round(float(np.median(each))) for name, each in worked.items()},
        "rounds": {name: [round(rate) for rate in each] for name, each in taken.items()},
    }
    report.claim("events/s in batches of 1,000", rates["ledger"], "events/s", 250_000, "higher")
    report.claim("  against DuckDB's INSERT from Arrow", rates["ledger"] / rates["duckdb INSERT"], "x", 1, "higher")
    report.claim("  against SQLite's WAL", rates["ledger"] / rates["sqlite WAL"], "x", 1, "higher")


def _ledger(writer: LedgerWriter, *, durable: bool) -> Way:
    def write(batches: list[pa.Table]) -> None:
        for batch in batches:
            writer.append(batch, durable=durable)
        writer.flush()

    return write


def _duckdb(path: Path) -> Way:
    connection = duckdb.connect(path)
    columns = ", ".join(f'"{name}" {sql_type}' for name, sql_type in all_columns().items())
    connection.execute(f"CREATE TABLE event ({columns})")

    def write(batches: list[pa.Table]) -> None:
        for batch in batches:
            connection.register("batch", batch)
            # Each statement is a transaction, on disk when it returns.
            connection.execute("INSERT INTO event BY NAME SELECT * FROM batch")
            connection.unregister("batch")

    return write


def _sqlite(path: Path) -> Way:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    columns = ", ".join(f'"{name}"' for name in all_columns())
    connection.execute(f"CREATE TABLE event ({columns})")

    def write(batches: list[pa.Table]) -> None:
        for batch in batches:
            given = ", ".join(f'"{name}"' for name in batch.column_names)
            marks = ", ".join("?" * batch.num_columns)
            connection.execute("BEGIN")
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            connection.executemany(f"INSERT INTO event ({given}) VALUES ({marks})", rows)
            connection.execute("COMMIT")

    return write
