"""The views of a connection fixed at one state of the ledger, for many queries on one state."""

from pathlib import Path

import duckdb

from rose.ledger import database, layout, segments, sources

#: A smaller segment is read once, because opening it for each view takes longer than reading it.
_SMALL_BYTES = 256 * 1024
_SMALL_EVENTS = 10_000  # Beyond this, copying takes longer than a plan of each view over the files.


def pin(connection: duckdb.DuckDBPyConnection, root: Path) -> None:
    """Fix `event`, and the views over it, at the present events, until `unpin`; daily views are unchanged. Uncompacted
    segments stay in memory. Raises LedgerError, duckdb.Error for a damaged file, OSError for one removed meanwhile."""
    root = layout.check(root)
    small: list[str] = []
    large: list[str] = []
    for writer in layout.writers(root):
        for part in layout.parts(root, writer):
            if part.state == "compacted":
                large.append(part.pattern)
                continue
            for name in segments.segment_names(root / part.folder):
                size = (root / part.folder / name).stat().st_size
                (small if size < _SMALL_BYTES else large).append(f"{part.folder}/{name}")
    with database.one_thread(connection):
        connection.execute(f"CREATE OR REPLACE TEMP TABLE small_event AS {sources.events(root, small)}")
    connection.execute(
        "CREATE OR REPLACE TEMP VIEW stored_event AS "
        f"FROM small_event UNION ALL BY NAME ({sources.events(root, large)})"
    )
    ((count,),) = connection.execute("SELECT count(*) FROM stored_event").fetchall()
    if count <= _SMALL_EVENTS:
        connection.execute("CREATE OR REPLACE TEMP TABLE event AS FROM ledger.event")


def unpin(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("DROP TABLE IF EXISTS temp.event")
    connection.execute("DROP VIEW temp.stored_event")
    connection.execute("DROP TABLE temp.small_event")
