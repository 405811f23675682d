"""DuckLake: the compacted files as a table of a lakehouse catalog, without a copy of them.

Each file gets a second name (a hard link) in the lake's own folder. DuckLake owns what is registered with it and may
remove it; then the lake's name goes and the ledger's stays. And what compaction or the archive took out of the ledger
is there for the lake until it lets go of it. The catalog itself is brought up to date by a SQL script, for any DuckDB
client that has the `ducklake` extension.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb

import sql
from rose.event_columns import all_columns
from rose.ledger import catalog, database, layout
from rose.ledger.catalog import quoted
from rose.ledger.growth.rolled import ROLLUPS
from rose.ledger.layout import LedgerError

#: The views of the ledger that need no table but `stored_event`.
VIEWS = tuple(view for view in catalog.VIEWS if view not in ROLLUPS)

# A DuckLake catalog is a DuckDB file, so what is in it can be read without the extension.
_FILES = "SELECT path FROM lake.ducklake_data_file WHERE end_snapshot IS NULL"
_COLUMNS = "SELECT column_name FROM lake.ducklake_column WHERE end_snapshot IS NULL"
_VIEWS = "SELECT view_name FROM lake.ducklake_view WHERE end_snapshot IS NULL"
_PRESENT = "SELECT coalesce(list(data_file), []) FROM ducklake_list_files('lake', 'stored_event')"


def update(root: Path | str, lake: Path | str) -> str:
    """Link the compacted files at `root` into `<lake>.files`; returns SQL that has the catalog `lake` hold just these.

    It makes the catalog if there is none, and may be run again. Events that are not compacted yet are not in it.
    Raises LedgerError if `root` is no ledger, if `lake` lies in it, on another file system or cannot be read.
    """
    root, lake = layout.check(root), Path(lake).expanduser().resolve()
    if root in lake.parents:
        raise LedgerError(f"{lake} lies in the ledger {root}; name a file outside of it")
    files = _linked(root, Path(f"{lake}.files"))
    present = _state(lake)
    attach = f"ATTACH IF NOT EXISTS {quoted(f'ducklake:{lake}')} AS lake (DATA_PATH {quoted(f'{lake}.files/')})"
    wanted = {name: f'"{name}" {sql_type}' for name, sql_type in all_columns().items()}
    if present.holds(files, wanted):
        return f"-- {len(files)} compacted files of {root} are in {lake}: nothing to do.\n{attach};\n"
    statements = [
        attach,
        "USE lake",
        f"CREATE TABLE IF NOT EXISTS stored_event ({', '.join(wanted.values())})",
        # CHECKPOINT would otherwise write the files anew, merged.
        "CALL lake.set_option('auto_compact', false, table_name => 'stored_event')",
        # A file whose last row is deleted leaves the lake, instead of staying there with a note beside it.
        "CALL lake.set_option('data_inlining_row_limit', 0)",
        "BEGIN",
    ]
    # A newer version of ROSE has more columns than the lake was made with.
    added = [column for name, column in wanted.items() if present.columns and name not in present.columns]
    statements += [f"ALTER TABLE stored_event ADD COLUMN IF NOT EXISTS {column}" for column in added]
    gone = sorted(present.files - set(files))
    statements += [f"DELETE FROM stored_event WHERE filename = {quoted(file)}" for file in gone]
    listed = f"[{', '.join(map(quoted, files))}]::VARCHAR[]"
    statements += [
        f"SET VARIABLE present = ({_PRESENT})",
        f"SET VARIABLE files = list_filter({listed}, lambda file: NOT list_contains(getvariable('present'), file))",
        "CALL ducklake_add_data_files('lake', 'stored_event', getvariable('files'), allow_missing => true)",
    ]
    statements += [sql.read(f"views/{view}.sql").rstrip().removesuffix(";") for view in VIEWS]
    return ";\n".join([*statements, "COMMIT"]) + ";\n"


def _linked(root: Path, home: Path) -> list[str]:
    """Paths of the compacted files in the lake's folder, those that were not there before linked."""
    with layout.moving_parts(root):
        parts = [part for writer in layout.writers(root) for part in layout.parts(root, writer)]
        names = [part.pattern for part in parts if part.state == "compacted"]
        try:
            for name in names:
                link = home / name
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.hardlink_to(root / name)
        except OSError as error:
            raise LedgerError(
                f"cannot link {name} to {home}: {error.strerror}. The lake must be on the ledger's own file system"
            ) from error
    return [str(home / name) for name in names]


@dataclass(frozen=True, slots=True)
class _State:
    """What a lake has now."""

    files: set[str]
    columns: set[str]
    views: set[str]

    def holds(self, files: Iterable[str], columns: Iterable[str]) -> bool:
        return self.files == set(files) and set(columns) <= self.columns and set(VIEWS) <= self.views


def _state(lake: Path) -> _State:
    """What the lake has now; nothing if there is none yet."""
    if not lake.exists():
        return _State(set(), set(), set())
    try:
        with database.connect() as connection:
            connection.execute(f"ATTACH {quoted(str(lake))} AS lake (READ_ONLY)")
            columns = [
                {name for (name,) in connection.execute(select).fetchall()} for select in (_FILES, _COLUMNS, _VIEWS)
            ]
            return _State(*columns)
    except duckdb.Error as error:
        raise LedgerError(
            f"cannot read the DuckLake catalog {lake}: {error}\nNo other program may have it open; name a file that is "
            "a DuckLake catalog, or a new one"
        ) from error
