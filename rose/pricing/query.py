"""Functions that run the named queries in sql/ on a ledger's catalog."""

import itertools
from collections.abc import Sequence
from typing import Any

import duckdb

import sql
from rose.ledger.files import database, segments, sources
from rose.ledger.ledger import Ledger

_TYPES = {  # DuckDB type of each variable: an empty list needs one.
    **dict.fromkeys(("run_id", "needs", "provenance", "part", "device_id"), "VARCHAR"),
    **dict.fromkeys(("from_ns", "to_ns", "period_from_ns", "period_end_ns", "archived_us", "horizon_ns"), "BIGINT"),
    "blocks": "INTEGER",
    **dict.fromkeys(("price_changes", "span_from", "span_to", "penalty_nano"), "BIGINT[]"),
    "span_device": "VARCHAR[]",
    **dict.fromkeys(("curve_at", "curve_nano"), "DOUBLE[][]"),
}

_ROWS_AT_ONCE = 100

_SMALL_RUN_EVENTS = 100_000  # A smaller run is read once, into some 200 MB: opening files for each view takes longer.

_VIEWS = (
    *("run", "device", "tenure", "device_slice", "lease", "holdout", "engine", "preemption", "sync"),
    *("turn", "trajectory", "verdict", "request", "power", "scale_down"),
)


def snapshot(connection: duckdb.DuckDBPyConnection, ledger: Ledger, run_id: str) -> None:
    """Copy a run's rows from every view into temporary tables. A fleet's copy includes its RL runs.
    An RL run's copy includes the events of its fleets during the run's time on them."""
    pin(connection, ledger)
    snapshot_pinned(connection, run_id)


def snapshot_pinned(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    set_variables(connection, run_id=run_id)
    shared = rows(connection, "run/fleets")
    runs = [run_id, *(row["fleet_run_id"] for row in shared)]
    # By the whole ledger: the copy has several fleets' events as one run's.
    for view in ("uncounted_time", "daily_event"):
        whole = f"CREATE OR REPLACE TEMP TABLE {view} AS FROM {view} WHERE run_id IN (SELECT unnest(?))"
        connection.execute(whole, [runs])
    connection.execute(sql.read("run/time_on_fleet.sql"))
    if shared:
        name = "events_on_fleet" if any(row["run_id"] == run_id for row in shared) else "events_of_fleet"
        made, select = "TABLE", sql.read(f"run/{name}.sql")
    else:
        own = "FROM event WHERE run_id = getvariable('run_id')"
        ((count,),) = connection.execute(f"SELECT count(*) {own}").fetchall()
        made, select = "TABLE" if count <= _SMALL_RUN_EVENTS else "VIEW", f"SELECT * {own}"
    connection.execute(f"CREATE OR REPLACE TEMP {made} own_event AS {select}")
    connection.execute("DROP TABLE IF EXISTS temp.event")
    connection.execute(f"ALTER {made} temp.own_event RENAME TO event")
    for view in _VIEWS:
        connection.execute(view_as("TEMP TABLE", view))
    connection.execute(f"DROP {made} temp.event")
    connection.execute("DROP TABLE temp.daily_event")
    unpin(connection)


def view_as(kind: str, view: str) -> str:
    begin = f"CREATE OR REPLACE VIEW {view} AS"
    text = sql.view(view)
    assert begin in text
    return text.replace(begin, f"CREATE OR REPLACE {kind} {view} AS")


def set_variables(connection: duckdb.DuckDBPyConnection, **variables: object) -> None:
    for name, value in variables.items():
        connection.execute(f"SET VARIABLE {name} = CAST($value AS {_TYPES[name]})", {"value": value})


def insert(connection: duckdb.DuckDBPyConnection, table: str, values: Sequence[Sequence[object]]) -> None:
    """Insert rows in batches, because each statement takes a millisecond."""
    for portion in (values[i : i + _ROWS_AT_ONCE] for i in range(0, len(values), _ROWS_AT_ONCE)):
        marks = ", ".join([f"({', '.join('?' * len(portion[0]))})"] * len(portion))
        connection.execute(f"INSERT INTO {table} VALUES {marks}", [value for row in portion for value in row])


def rows(connection: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    return records(connection.execute(sql.read(f"{name}.sql")))


def records(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    assert cursor.description is not None
    columns = [column[0] for column in cursor.description]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


#: A smaller segment is read once, because opening it for each view takes longer than reading it.
_SMALL_BYTES = 256 * 1024
_SMALL_EVENTS = 10_000  # Beyond this, copying takes longer than a plan of each view over the files.


def pin(connection: duckdb.DuckDBPyConnection, ledger: Ledger) -> None:
    """Freeze the view `event` and the views built on it: they no longer show new events. Daily views still show them.

    Raises LedgerError, duckdb.Error or OSError if a file is damaged or gone."""
    small: list[str] = []
    large: list[str] = []
    for part in itertools.chain.from_iterable(ledger.parts.values()):
        if part.state == "compacted":
            large.append(part.pattern)
            continue
        for name in segments.segment_names(ledger.folder / part.folder):
            size = (ledger.folder / part.folder / name).stat().st_size
            (small if size < _SMALL_BYTES else large).append(f"{part.folder}/{name}")
    with database.one_thread(connection):
        connection.execute(f"CREATE OR REPLACE TEMP TABLE small_event AS {sources.events(ledger.folder, small)}")
    connection.execute(
        "CREATE OR REPLACE TEMP VIEW stored_event AS "
        f"FROM small_event UNION ALL BY NAME ({sources.events(ledger.folder, large)})"
    )
    ((count,),) = connection.execute("SELECT count(*) FROM stored_event").fetchall()
    if count <= _SMALL_EVENTS:
        connection.execute("CREATE OR REPLACE TEMP TABLE event AS FROM ledger.event")


def unpin(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("DROP TABLE IF EXISTS temp.event")
    connection.execute("DROP VIEW temp.stored_event")
    connection.execute("DROP TABLE temp.small_event")
