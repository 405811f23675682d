"""What pricing keeps of a ledger between two calls: sums by hour, and how far each writer is in them.

It lies in `<ledger>/pricing.duckdb` once the ledger has so many events that adding them all up again would be felt,
and can be removed at any time: it is made again from the events. Until then it is in memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from rose.ledger import catalog, database, layout, rows, sources
from rose.ledger.reading import increment
from rose.ledger.reading.increment import Increment, Mark
from rose.pricing import query
from rose.pricing.money import NS_PER_HOUR, PricingError, split
from rose.pricing.query import records

STATE = layout.PRICING
#: A ledger of fewer events is added up anew each time.
KEPT_EVENTS = 100_000
#: Opening a file of fewer events takes longer than reading it.
_SMALL_EVENTS = 2000
#: After so many additions to the same hours, what lies in portions is summed up.
_PORTIONS = 16
_VIEWS = tuple(sql.paths("views")[view] for view in ("run", "device", "tenure"))
_RUNS_AND_DEVICES = f"""SELECT {", ".join((*COMMON_COLUMNS, *(columns("run") | columns("device"))))},
    make_timestamp(at_us) AS event_time"""
#: Another time is none; sql/sums/30_added.sql says it of other numbers.
_IN_TIME = f"at_us BETWEEN 0 AND {INSTANT_US_MAX}"
#: Time that is of the RL run that a slice's rollouts are of.
_ROLLOUT_BUCKETS = ("rollout", "sync", "activation", "headroom")
_KINDS = ("run", "device", "lease", "device_slice", "turn", "preemption", "trajectory", "verdict", "sync", "power")


@contextmanager
def current(root: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the sums of the ledger at `root` as it is now; a change to it is lost, its own tables are not.

    Who asks meanwhile waits. Raises LedgerError for a damaged ledger, PricingError if it cannot be added up.
    """
    root = layout.check(root)
    path = root / STATE
    # Python variables are never taken for tables.
    config: dict[str, Any] = {"python_enable_replacements": False}
    try:
        if not path.exists() and (increment.since(root, {}).events < KEPT_EVENTS or not os.access(root, os.W_OK)):
            with database.connect(config=config) as connection:
                yield _brought_up_to_date(connection, root, new=True)
            return
        with layout.locked(root / "locks" / "pricing.lock"):
            with database.connect(config=config) as connection:
                yield _brought_up_to_date(connection, root, new=not _attach(connection, path))
    except (duckdb.Error, OSError) as error:
        raise PricingError(
            f"cannot add up the ledger {root}: {error}. `rose ledger verify` names what is damaged; if nothing is, "
            f"remove {path} and try again"
        ) from error


def _attach(connection: duckdb.DuckDBPyConnection, path: Path) -> bool:
    """Attach the file and make it the default; False if it is new, or of another version or damaged and begun anew."""
    try:
        connection.execute(f"ATTACH {catalog.quoted(str(path))} AS kept")
        connection.execute("USE kept")
        connection.execute(f"SELECT kept_{_version()}()").fetchall()
        return True
    except duckdb.Error:
        connection.execute("USE memory")
        connection.execute("DETACH DATABASE IF EXISTS kept")
        for file in (path, path.with_name(f"{path.name}.wal")):
            file.unlink(missing_ok=True)
        connection.execute(f"ATTACH {catalog.quoted(str(path))} AS kept")
        connection.execute("USE kept")
        return False


def _brought_up_to_date(connection: duckdb.DuckDBPyConnection, root: Path, *, new: bool) -> duckdb.DuckDBPyConnection:
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET preserve_insertion_order = false")
    # The same files are read for slices, turns, and the rest.
    connection.execute("SET parquet_metadata_cache = true")
    # Strings as polars keeps them: what is read out need not be built again.
    connection.execute("SET arrow_output_version = '1.4'")
    connection.execute("SET produce_arrow_string_view = true")
    added = increment.since(root, {} if new else _marks(connection))
    if not added.events and not new and not _new_id_files(connection, added):
        return connection
    if not new:
        connection.execute("BEGIN")
        if _fold(connection, root, added, first=False):
            connection.execute("COMMIT")
            return connection
        # Some sums cannot be undone: begin anew.
        connection.execute("ROLLBACK")
        connection.execute(f"DROP MACRO kept_{_version()}")
        for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall():
            connection.execute(f"DROP TABLE {name}")
        added = increment.since(root, {})
    # Not one transaction, which would hold all that it makes on the way until it ends: half the memory. What is killed
    # meanwhile is not of this version, since that is said last, and is begun anew.
    _fold(connection, root, added, first=True)
    connection.execute(f"CREATE OR REPLACE MACRO kept_{_version()}() AS true")
    return connection


def _marks(connection: duckdb.DuckDBPyConnection) -> dict[str, Mark]:
    marks = connection.execute("SELECT writer, epoch, index, next_seq FROM mark").fetchall()
    return {writer: Mark(epoch, index, next_seq) for writer, epoch, index, next_seq in marks}


def _new_id_files(connection: duckdb.DuckDBPyConnection, added: Increment) -> list[str]:
    """Return the files with ids of the roll-ups that were not there when the sums were last added to."""
    known = dict(connection.execute("FROM id_file").fetchall())
    return [path for path, sha256 in added.id_files.items() if known.get(path) != sha256]


def _create(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(sql.read("sums/10_state.sql"))
    # What a run and a device are, the ledger's own views say, of these events.
    connection.execute(f"CREATE TABLE event AS {_RUNS_AND_DEVICES} FROM added WHERE false")
    for view in _VIEWS:
        connection.execute(sql.read(view))
    connection.execute(sql.read("sums/15_hardware.sql"))


def _fold(connection: duckdb.DuckDBPyConnection, root: Path, added: Increment, *, first: bool) -> bool:
    """Add the new events to the sums, in the transaction that is open.

    False if what was added before would have to be taken out: another record of its event_id counts by now, or a device
    that is known is heard to have been in another pool or class for a time.
    """

    def run(name: str) -> None:
        connection.execute(sql.read(f"sums/{name}.sql"))

    def drop(*names: str) -> None:
        for name in names:
            connection.execute(f"DROP TABLE {name}")

    def count(text: str) -> int:
        return int(connection.execute(text).fetchall()[0][0] or 0)

    # Many small files are read once, large ones only for the columns that are asked for.
    made = "TABLE" if added.events < _SMALL_EVENTS * added.files else "VIEW"
    connection.execute(f"CREATE TEMP {made} added AS FROM ({added.select}) WHERE {_IN_TIME}")
    connection.execute(f"CREATE OR REPLACE TEMP VIEW writer_order AS {added.writer_order}")
    if first:
        _create(connection)
    new_id_files = _new_id_files(connection, added)
    for view, paths in (("rolled_client_id", added.id_files), ("new_rolled_client_id", new_id_files)):
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {sources.client_ids(root, paths)}")
    run("20_retries")
    if count("SELECT count(*) FROM overtaken"):
        return False
    without = " ANTI JOIN retry USING (writer, seq)" if count("SELECT count(*) FROM retry") else ""
    kinds = ", ".join(map(catalog.quoted, _KINDS))
    connection.execute(f"CREATE OR REPLACE TEMP VIEW new_event AS SELECT * FROM added{without} WHERE kind IN ({kinds})")
    connection.execute(f"INSERT INTO event {_RUNS_AND_DEVICES} FROM new_event WHERE kind IN ('run', 'device')")
    run("25_spells")
    if count("SELECT count(*) FROM resplit"):
        return False
    run("30_added")
    if not first:
        connection.execute("SET VARIABLE sign = -1")
        run("40_fates")
    run("50_fold")
    connection.execute("SET VARIABLE sign = 1")
    run("40_fates")
    if first:
        drop("new_turn", "moved", "new_token", "own_token", "new_attempt", "own_attempt")
        drop("new_ended", "own_ended", "new_judged", "own_judged")
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
    """Cut what crosses the end of an hour: a slice in proportion to the time on each side, a reading by its time."""
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
    """The parts of a slice (`t0_ns`, `t1_ns` and `<bucket>_ns`) in each hour, as (hours since the epoch, ns by bucket).

    Part after part gets its length of what is left of the buckets, in proportion, by largest remainder: the parts
    sum to the slice's buckets, and each part to its length.
    """
    left = {bucket: int(row[f"{bucket}_ns"]) for bucket in BUCKETS}
    for hour, ns in _hours(row["t0_ns"], row["t1_ns"]):
        part = split(ns, left)
        left = {bucket: left[bucket] - part[bucket] for bucket in left}
        yield hour, part
    assert not any(left.values())


def owned(row: Mapping[str, Any], part: Mapping[str, int]) -> Iterator[tuple[str | None, dict[str, int]]]:
    """What a part of a slice has of each RL run (None: of the run that the device is of), as (run, ns by bucket)."""
    owners = dict.fromkeys(_ROLLOUT_BUCKETS, row["rollout_run_id"]) | {"train": row["train_run_id"]}
    for rl_run_id in dict.fromkeys((None, *owners.values())):
        own = {bucket: ns if owners.get(bucket) == rl_run_id else 0 for bucket, ns in part.items()}
        if any(own.values()):
            yield rl_run_id, own


def _hours(t0_ns: int, t1_ns: int) -> Iterator[tuple[int, int]]:
    """The hours of [t0_ns, t1_ns), each with the time in it."""
    first = t0_ns // NS_PER_HOUR
    inside = range((first + 1) * NS_PER_HOUR, t1_ns, NS_PER_HOUR)
    for number, (from_ns, to_ns) in enumerate(pairwise([t0_ns, *inside, t1_ns])):
        yield first + number, to_ns - from_ns


@cache
def _version() -> str:
    """Names what is kept and how: every script, the views of runs and devices, and the columns they are about."""
    scripts = sorted(
        f"{folder}/{file.name}"
        for folder in ("charges", "sums")
        for file in files(sql).joinpath(folder).iterdir()
        if file.name.endswith(".sql")
    )
    texts = [sql.read(name) for name in (*scripts, *_VIEWS)]
    return hashlib.sha256("\n".join([*texts, _IN_TIME, *rows.schema().names, *_KINDS]).encode()).hexdigest()[:16]
