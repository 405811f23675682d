"""The newest daily sums, added up again from the events that they count."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from rose.ledger import catalog, layout, sources
from rose.ledger.evidence import footer
from rose.ledger.growth import rolled
from rose.ledger.growth.rolled import ROLLUPS
from rose.ledger.layout import LedgerError


def faults(root: Path) -> tuple[list[str], str | None]:
    """Daily sums that are not those of their events; and, where they cannot be compared, why.

    Takes as long as a first roll-up. Raises LedgerError for a damaged ledger.
    """
    coverage = rolled.newest(root)
    if coverage is None or not coverage.writers:
        # Nobody reads sums that count nothing, and older versions left some.
        return [], None
    if not coverage.complete:
        return [], f"{coverage.folder} is of another version of ROSE; the next roll-up makes it anew"
    for writer, (last_epoch, _) in coverage.writers.items():
        for part in layout.chain(root, writer):
            if part.state == "archived" and part.first <= last_epoch:
                return [], f"of the events that they count, those of {part.manifest} were archived; restore them first"
    problems = []
    try:
        with catalog.connect(root, until=(None, coverage.writers)) as connection:
            for name in ROLLUPS:
                file = f"{coverage.folder}/{name}.parquet"
                if differing := _differing(connection, sources.parquet(root, [file]), f"FROM {name}"):
                    problems.append(f"{file}: {differing:,} rows are not the sums of the events that they count")
                elif lies := _footer_fault(root / file):
                    problems.append(f"{file}: {lies}")
            stored, again = sources.client_ids(root, coverage), sources.new_client_ids()
            if differing := _differing(connection, stored, again):
                problems.append(
                    f"{rolled.ID_FOLDER}: {differing:,} rows are not the ids of the events that are counted"
                )
            problems += [f"{file}: {lies}" for file in coverage.ids if (lies := _footer_fault(root / file))]
    except duckdb.Error as error:
        raise LedgerError(f"the daily sums of {root} cannot be compared: {error}") from error
    return problems, None


def _differing(connection: duckdb.DuckDBPyConnection, stored: str, again: str) -> int:
    """Rows that only one of two SELECTs has."""
    more, fewer = (f"(({one}) EXCEPT ALL ({other}))" for one, other in ((stored, again), (again, stored)))
    return int(connection.execute(f"SELECT count(*) FROM ({more} UNION ALL {fewer})").fetchall()[0][0])


def _footer_fault(path: Path) -> str | None:
    """What of the file's footer would keep readers from rows that are in it."""
    try:
        footer.check_file(path.read_bytes())
    except (OSError, LedgerError, pa.ArrowException) as error:
        return str(error)
    return None
