"""Fixes a connection's views at one state of the ledger."""

import duckdb

from rose.ledger.files import database, layout, segments, sources
from rose.ledger.ledger import Ledger

#: A smaller segment is read once, because opening it for each view takes longer than reading it.
_SMALL_BYTES = 256 * 1024
_SMALL_EVENTS = 10_000  # Beyond this, copying takes longer than a plan of each view over the files.


def pin(connection: duckdb.DuckDBPyConnection, ledger: Ledger) -> None:
    """Fix `event`, and the views that read it, at the events that exist now. Daily views are not fixed.

    Raises LedgerError, duckdb.Error or OSError if a file is damaged or gone."""
    small: list[str] = []
    large: list[str] = []
    for writer in layout.writers(ledger.folder):
        for part in layout.parts(ledger.folder, writer):
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
