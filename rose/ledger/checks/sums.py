"""Compares daily sums with their events, which shows a forged roll-up."""

from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from rose.ledger.files import catalog, footer, layout, rolled, sources
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.rolled import CLIENT_ID, ROLLUPS


class Sums(NamedTuple):
    problems: list[str]
    missing: str | None = None  # Why they cannot be compared.
    unchecked: tuple[str, ...] = ()


def sum_faults(root: Path) -> Sums:
    """Return the faults of the newest daily sums. This takes as long as a first roll-up."""
    coverage = rolled.newest(root)
    if coverage is None or not coverage.writers:
        # Sums that count nothing have no reader, and older versions left some.
        return Sums([])
    if not coverage.complete:
        return Sums([], f"{coverage.folder} is of another version of ROSE; the next roll-up makes it anew")
    for writer, (last_epoch, _) in coverage.writers.items():
        for part in layout.chain(root, writer):
            if part.state == "archived" and part.first <= last_epoch:
                return Sums([], f"events in {part.manifest} are archived; restore them first")
    problems: list[str] = []
    unchecked: list[str] = []
    try:
        with catalog.connect(root) as connection:
            stored = sources.client_ids(root, coverage.ids)
            # Only the roll-up knows which record of an id came first, and `retry` reads it there.
            connection.execute(f"CREATE TEMP VIEW rolled_{CLIENT_ID} AS {stored}")
            catalog.limit(connection, root, (None, coverage.writers), "retry")
            for name in ROLLUPS:
                file = f"{coverage.folder}/{name}.parquet"
                if differing := _differing(connection, sources.parquet(root, [file]), f"FROM {name}"):
                    problems.append(f"{file}: {differing:,} rows are not the sums of the events that they count")
            if differing := _differing(connection, stored, sources.new_client_ids()):
                problems.append(
                    f"{rolled.ID_FOLDER}: {differing:,} rows are not the ids of the events that are counted"
                )
        for file in (*(f"{coverage.folder}/{name}.parquet" for name in ROLLUPS), *coverage.ids):
            try:
                unchecked += (f"{file}: {structure}" for structure in footer.check_file((root / file).read_bytes()))
            except (OSError, LedgerError, pa.ArrowException) as error:
                problems.append(f"{file}: {error}")
    except duckdb.Error as error:
        raise LedgerError(f"the daily sums of {root} cannot be compared: {error}") from error
    return Sums(problems, None, tuple(unchecked))


def _differing(connection: duckdb.DuckDBPyConnection, stored: str, again: str) -> int:
    both = f"SELECT *, 1 AS _copies FROM ({stored}) UNION ALL SELECT *, -1 FROM ({again})"
    counted = f"SELECT * EXCLUDE (_copies), sum(_copies) AS _copies FROM ({both}) GROUP BY ALL"
    return int(connection.execute(f"SELECT coalesce(sum(abs(_copies)), 0) FROM ({counted})").fetchall()[0][0])
