"""Hourly sums of a ledger's events, and for each writer the last event that the sums include.

The sums of a ledger with at least KEPT_EVENTS events are in the file `<ledger>/pricing.duckdb`, which you may remove.
The sums of a smaller ledger are in memory."""

import hashlib
import os
import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb

import sql
from rose.event_columns import COMMON_COLUMNS, columns
from rose.event_fields import INSTANT_US_MAX
from rose.events import BUCKETS
from rose.ledger.files import database, layout, registry, rolled, rows, segments, sources
from rose.ledger.files.layout import Part
from rose.ledger.ledger import Ledger
from rose.pricing import query
from rose.pricing.money import NS_PER_HOUR, PricingError, split
from rose.pricing.query import records

STATE = layout.PRICING
KEPT_EVENTS = 100_000
_IN_MEMORY, _ANSWERS = 4, 64  # Small ledgers that a process keeps: pages and the API ask for many figures.
_SUMMED = ("live", "compacted", "archived", rolled.FOLDER, registry.FILE)
_SMALL_EVENTS = 2000  # Opening a file with fewer events takes longer than reading it.
_PORTIONS = 16  # Additions to an hour before its portions are summed up.
_VIEWS = ("run", "tenure")
_RUNS_AND_DEVICES = f"""SELECT {", ".join((*COMMON_COLUMNS, *(columns("run") | columns("device"))))},
    make_timestamp(at_us) AS event_time"""
_IN_TIME = f"at_us BETWEEN 0 AND {INSTANT_US_MAX}"  # Other times are invalid; sql/sums/30_added.sql checks numbers.
_ROLLOUT_BUCKETS = ("rollout", "sync", "activation", "headroom")  # Time that belongs to the slice's RL run.
_OF_TRAJECTORIES = ("token", "attempt", "ended", "judged")
_KINDS = ("run", "device", "lease", "device_slice", "turn", "preemption", "trajectory", "verdict", "sync", "power")


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a writer's events were read: to the end of segment `index` of `epoch`. The next event has `next_seq`."""

    epoch: int
    index: int
    next_seq: int


@dataclass(frozen=True, slots=True)
class Increment:
    select: str
    files: int
    marks: Mapping[str, Mark]
    events: int
    id_files: Mapping[str, str]  # By path relative to the ledger: SHA-256 of the files with the roll-ups' ids.


@dataclass(frozen=True, slots=True)
class _Sums:
    database: duckdb.DuckDBPyConnection
    answers: dict[Hashable, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_memory: dict[bytes, _Sums] = {}  # By `_content`; the last used is at the end.
_memory_lock = threading.Lock()


@contextmanager
def current(ledger: Ledger) -> Iterator[tuple[duckdb.DuckDBPyConnection, dict[Hashable, Any]]]:
    """Update the sums. Yield a connection to them, and a cache of answers that were computed from them. Other callers
    wait until the `with` block ends. Raises LedgerError or PricingError."""
    path = ledger.folder / STATE
    try:
        if not path.exists():
            small = since(ledger, {}).events < KEPT_EVENTS
            if small or not os.access(ledger.folder, os.W_OK):
                with _in_memory(ledger, small) as kept:
                    yield kept
                return
        with ledger.lock("pricing"), _connect() as connection:
            new = not _attach(connection, path)
            _configure(connection)
            _bring_up_to_date(connection, ledger, new=new)
            yield connection, {}
    except (duckdb.Error, OSError) as error:
        raise PricingError(
            f"cannot add up the ledger {ledger.folder}: {layout.unreadable(error)}; if the ledger is sound, "
            f"remove {path} and try again"
        ) from error


def _connect() -> duckdb.DuckDBPyConnection:
    # Python variables are never taken for tables.
    return database.connect(config={"python_enable_replacements": False})


@contextmanager
def _in_memory(ledger: Ledger, small: bool) -> Iterator[tuple[duckdb.DuckDBPyConnection, dict[Hashable, Any]]]:
    content = _content(ledger) if small else b""
    with _memory_lock:
        sums = _memory.pop(content, None)
        if sums is not None:
            _memory[content] = sums  # The newest comes last.
    if sums is None:
        sums = _Sums(_connect())
        with sums.database.cursor() as connection:  # With it go the tables that only folding needs.
            _configure(connection)
            _bring_up_to_date(connection, ledger, new=True)
        if content and _content(ledger) == content:
            with _memory_lock:
                _memory[content] = sums
                for oldest in list(_memory)[:-_IN_MEMORY]:
                    del _memory[oldest]
    try:
        with sums.lock, sums.database.cursor() as connection:
            _configure(connection)
            if len(sums.answers) >= _ANSWERS:
                sums.answers.clear()
            yield connection, sums.answers
    except duckdb.Error:
        _memory.pop(content, None)  # After some errors a database refuses everything.
        raise


def _content(ledger: Ledger) -> bytes:
    """Return a digest of all files that the sums depend on, or empty bytes if a file disappeared during the reading."""
    digest = hashlib.sha256()
    listed = (path for name in _SUMMED for path in (ledger.folder / name, *(ledger.folder / name).rglob("*")))
    try:
        for path in sorted(path for path in listed if path.is_file()):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(ledger.folder)}\0{len(content)}\0".encode())
            digest.update(content)
    except FileNotFoundError:
        return b""
    return digest.digest()


def _attach(connection: duckdb.DuckDBPyConnection, path: Path) -> bool:
    try:
        connection.execute(f"ATTACH {sources.quoted(str(path))} AS kept")
        connection.execute("USE kept")
        connection.execute(f"SELECT kept_{_version()}()").fetchall()
        return True
    except duckdb.Error:
        connection.execute("USE memory")
        connection.execute("DETACH DATABASE IF EXISTS kept")
        for file in (path, path.with_name(f"{path.name}.wal")):
            file.unlink(missing_ok=True)
        connection.execute(f"ATTACH {sources.quoted(str(path))} AS kept")
        connection.execute("USE kept")
        return False


def _configure(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("SET arrow_output_version = '1.4'")  # Polars' own string format: results are not rebuilt.
    connection.execute("SET produce_arrow_string_view = true")


def _bring_up_to_date(connection: duckdb.DuckDBPyConnection, ledger: Ledger, *, new: bool) -> None:
    marks = [] if new else connection.execute("SELECT writer, epoch, index, next_seq FROM mark").fetchall()
    added = since(ledger, {writer: Mark(*mark) for writer, *mark in marks})
    if not added.events and not new and not _new_id_files(connection, added):
        return
    if not new:
        connection.execute("BEGIN")
        if _fold(connection, ledger, added, first=False):
            connection.execute("COMMIT")
            return
        connection.execute("ROLLBACK")  # Some sums cannot be undone: begin anew.
        connection.execute(f"DROP MACRO kept_{_version()}")
        for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall():
            connection.execute(f"DROP TABLE {name}")
        added = since(ledger, {})
    # A transaction would take twice the memory. A killed process leaves no version macro: the file is begun anew.
    _fold(connection, ledger, added, first=True)
    connection.execute(f"CREATE OR REPLACE MACRO kept_{_version()}() AS true")


def _new_id_files(connection: duckdb.DuckDBPyConnection, added: Increment) -> list[str]:
    known = dict(connection.execute("FROM id_file").fetchall())
    return [path for path, sha256 in added.id_files.items() if known.get(path) != sha256]


def _fold(connection: duckdb.DuckDBPyConnection, ledger: Ledger, added: Increment, *, first: bool) -> bool:
    """Add new events to the sums, and return True. Return False if a new event changes earlier sums, for example by an
    overlapping slice or by a device's new pool. Then the caller adds up all events again. If `first` is not set, the
    caller opens a transaction before the call. Afterwards the caller commits it, or rolls it back after False."""
    # Many small files are read once, large files column by column.
    made = "TABLE" if added.events < _SMALL_EVENTS * added.files else "VIEW"

    def run(name: str) -> None:
        connection.execute(sql.read(f"sums/{name}.sql").replace("TEMP VIEW of_unit", f"TEMP {made} of_unit"))

    def drop(*names: str) -> None:
        for name in names:
            connection.execute(f"DROP TABLE {name}")

    def count(text: str) -> int:
        return int(connection.execute(text).fetchall()[0][0] or 0)

    connection.execute(f"CREATE TEMP {made} added AS FROM ({added.select}) WHERE {_IN_TIME}")
    connection.execute(f"CREATE OR REPLACE TEMP VIEW writer_order AS {ledger.writer_order}")
    if first:
        connection.execute(sql.read("sums/10_state.sql"))
        connection.execute(f"CREATE TABLE event AS {_RUNS_AND_DEVICES} FROM added WHERE false")
    new_id_files = _new_id_files(connection, added)
    for view, paths in (("rolled_client_id", added.id_files), ("new_rolled_client_id", new_id_files)):
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {sources.client_ids(ledger.folder, paths)}")
    run("20_retries")
    if count("SELECT count(*) FROM overtaken"):
        return False
    without = " ANTI JOIN retry USING (writer, seq)" if count("SELECT count(*) FROM retry") else ""
    connection.execute(f"CREATE OR REPLACE TEMP VIEW new_event AS SELECT * FROM added{without} WHERE kind IN {_KINDS}")
    connection.execute(f"INSERT INTO event {_RUNS_AND_DEVICES} FROM new_event WHERE kind IN ('run', 'device')")
    for view in _VIEWS:  # The ledger's own views define runs and tenures, over these events.
        connection.execute(query.view_as("TABLE", view))
    run("25_spells")
    if count("SELECT count(*) FROM resplit"):
        return False
    run("30_added")
    run("35_hardware")
    if not first:
        connection.execute("SET VARIABLE sign = -1")
        run("40_fates")
    run("50_fold")
    connection.execute("SET VARIABLE sign = 1")
    run("40_fates")
    if first:
        drop("new_turn", "moved", *(f"{age}_{name}" for age in ("new", "own") for name in _OF_TRAJECTORIES))
    run("52_disputed")
    if count("SELECT count(*) FROM disputed"):
        if not first:
            return False
        connection.execute(query.view_as("TEMP VIEW", "uncounted_time").replace("FROM event", "FROM new_event"))
        run("53_uncounted")
    run("55_slices")
    _fold_crossing(connection)
    if first:
        drop("new_slice", "new_other")
    else:
        run("70_touched")
        run("80_forget")
        if count("SELECT max(portion) FROM grown") >= _PORTIONS:
            run("90_gather")
    connection.execute("DELETE FROM id_file")
    query.insert(connection, "id_file", [[path, sha256] for path, sha256 in added.id_files.items()])
    connection.execute("DELETE FROM mark")
    query.insert(connection, "mark", [[writer, at.epoch, at.index, at.next_seq] for writer, at in added.marks.items()])
    return True


def _fold_crossing(connection: duckdb.DuckDBPyConnection) -> None:
    slices, readings = [], []
    for row in records(connection.execute(sql.read("sums/60_crossing.sql"))):
        events = [row["writer"], row["seq"], row["seq"]]
        if row["kind"] == "power":
            for hour, ns in _hours(row["t0_ns"], row["t1_ns"]):
                readings.append([row["unit"], hour, *events, ns, row["power_mw"] * ns])
            continue
        for hour, part in cut(row):
            for rl_run_id, own in owned(row, part):
                slices.append(
                    [row["unit"], hour, row["lease_id"], rl_run_id, *events, *(own[name] for name in BUCKETS)]
                )
    query.insert(connection, "slice", slices)
    query.insert(connection, "metered", readings)


def cut(row: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, int]]]:
    """Cut a slice at each full hour. Yield (hours since the epoch, ns by bucket). Each hour's nanoseconds are divided
    among the buckets by largest remainder."""
    left = {bucket: int(row[f"{bucket}_ns"]) for bucket in BUCKETS}
    for hour, ns in _hours(row["t0_ns"], row["t1_ns"]):
        part = split(ns, left)
        left = {bucket: left[bucket] - part[bucket] for bucket in left}
        yield hour, part
    assert not any(left.values())


def owned(row: Mapping[str, Any], part: Mapping[str, int]) -> Iterator[tuple[str | None, dict[str, int]]]:
    """Divide a slice's time among its runs. `part` has the slice's nanoseconds by bucket. Yield (RL run, nanoseconds
    by bucket). For time of the run that owns the device, the RL run is None."""
    owners = dict.fromkeys(_ROLLOUT_BUCKETS, row["rollout_run_id"]) | {"train": row["train_run_id"]}
    for rl_run_id in dict.fromkeys((None, *owners.values())):
        own = {bucket: ns if owners.get(bucket) == rl_run_id else 0 for bucket, ns in part.items()}
        if any(own.values()):
            yield rl_run_id, own


def _hours(t0_ns: int, t1_ns: int) -> Iterator[tuple[int, int]]:
    first = t0_ns // NS_PER_HOUR
    inside = range((first + 1) * NS_PER_HOUR, t1_ns, NS_PER_HOUR)
    for number, (from_ns, to_ns) in enumerate(pairwise([t0_ns, *inside, t1_ns])):
        yield first + number, to_ns - from_ns


@cache
def _version() -> str:
    scripts = sorted(
        f"{folder}/{file.name}"
        for folder in ("charges", "sums")
        for file in files(sql).joinpath(folder).iterdir()
        if file.name.endswith(".sql")
    )
    texts = [*map(sql.read, scripts), *map(sql.view, (*_VIEWS, "uncounted_time"))]
    return hashlib.sha256("\n".join([*texts, _IN_TIME, *rows.schema().names, *_KINDS]).encode()).hexdigest()[:16]


def since(ledger: Ledger, marks: Mapping[str, Mark]) -> Increment:
    """Return new events: after the writer's mark, or all without a mark. Raises LedgerError for a damaged segment."""
    files: list[str] = []
    apart: list[str] = []
    ends, events = {}, 0
    for writer, parts in ledger.parts.items():
        begin = end = marks.get(writer, Mark(-1, -1, 0))
        for part in parts:
            if part.last < begin.epoch:
                continue
            if part.state == "live":
                listed, end = _segments(ledger, part, begin, end)
                files += listed
                continue
            next_seq = segments.end_seq(ledger.folder, part)
            if next_seq > begin.next_seq:
                files.append(part.pattern)
                # An epoch that was open at the mark was merged since.
                if part.first <= begin.epoch:
                    apart.append(f"writer = {sources.quoted(writer)} AND seq < {begin.next_seq}")
            end = Mark(part.last, 2**31, max(next_seq, begin.next_seq))
        ends[writer] = end
        events += end.next_seq - begin.next_seq
    coverage = ledger.coverage
    id_files = coverage.ids if coverage is not None and coverage.complete else {}
    return Increment(sources.events(ledger.folder, files, apart=apart), len(files), ends, events, id_files)


def _segments(ledger: Ledger, part: Part, begin: Mark, end: Mark) -> tuple[list[str], Mark]:
    names = segments.segment_names(ledger.folder / part.folder)
    new = [name for name in names if part.first > begin.epoch or int(name.partition("-")[0]) > begin.index]
    if not new:
        return [], end
    header = segments.read_header((ledger.folder / part.folder / new[-1]).read_bytes())
    return [f"{part.folder}/{name}" for name in new], Mark(part.first, header.index, header.last_seq + 1)
