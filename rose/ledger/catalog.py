"""The catalog: a DuckDB file that holds views and no data, so that a reader never meets a writer's lock.

`stored_event` reads the segments of every part of the ledger; everything else is in `sql/views`. The file is
replaced atomically when a writer or a new epoch appears and when a compaction is done; segments added to an epoch
show without that.
"""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

import sql
from rose.ledger import layout, rows
from rose.ledger.layout import LedgerError

#: The views, in the order in which they can be made; the public interface of the ledger.
VIEWS = (
    "event",
    "run",
    "device",
    "engine",
    "lease",
    "lease_event",
    "preemption",
    "sync",
    "turn",
    "trajectory",
    "verdict",
    "request",
    "device_slice",
    "step",
    "power",
)
#: Older DuckDB clients can open a file of this version.
_STORAGE_VERSION = "v1.5.0"
_STORED_COMMENT = "The segments as they were written, retried events included. Read `event` instead."


def refresh(root: Path | str) -> None:
    """Replace the ledger's catalog by one that reads every part there is now. Raises LedgerError or OSError."""
    root = layout.check(root)
    with layout.locked(root / "locks" / "catalog.lock"):
        _write_schema(root)
        temporary = root / f".{layout.CATALOG}.tmp"
        temporary.with_name(f"{temporary.name}.wal").unlink(missing_ok=True)
        temporary.write_bytes(_template())
        try:
            # Patterns relative to the ledger let the folder move; DuckDB finds them here by its search path.
            with duckdb.connect(temporary, config={"file_search_path": str(root)}) as connection:
                connection.execute(f"CREATE OR REPLACE VIEW stored_event AS {_stored(_patterns(root))}")
                connection.execute(f"COMMENT ON VIEW stored_event IS {quoted(_STORED_COMMENT)}")
            layout.replace_file(temporary, root / layout.CATALOG)
        except duckdb.Error as error:
            raise LedgerError(
                f"cannot write the catalog of {root}: {error}\n"
                "`rose ledger verify` names what is damaged; put it back from a copy, or move it out of the ledger"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)


def connect(root: Path | str) -> duckdb.DuckDBPyConnection:
    """A connection that reads the ledger as it is now, from any working directory, with UTC as its time zone.

    Events that are written later show in later queries, but for those of an epoch begun later: open a connection for
    each piece of work (about 25 ms), and never keep one for longer than a compaction's grace period.
    Raises LedgerError.
    """
    root = layout.check(root)
    # In memory, with the catalog attached: several connections in one process then share no settings. Python
    # variables are never taken for tables.
    connection = duckdb.connect(config={"python_enable_replacements": False})
    try:
        _attach(connection, root)
        connection.execute("USE ledger")
        connection.execute("SET TimeZone = 'UTC'")
        # A temporary view goes before the catalog's own: absolute paths, and the parts of this moment.
        connection.execute(f"CREATE TEMP VIEW stored_event AS {_stored([f'{root}/{p}' for p in _patterns(root)])}")
    except duckdb.Error as error:
        connection.close()
        raise LedgerError(f"cannot read the ledger at {root}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


@functools.cache
def comments(view: str) -> tuple[str, dict[str, str]]:
    """What `sql/views/<view>.sql` says in its head: of the view, and of each column it documents."""
    lines = []
    for line in sql.read(f"views/{view}.sql").splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").removeprefix(" "))
    about, _, documented = "\n".join(lines).partition("\n\n")
    entries = re.findall(r"^(\w+): (.+(?:\n {4}.+)*)", documented, re.MULTILINE)
    return " ".join(about.split()), {column: " ".join(text.split()) for column, text in entries}


@functools.cache
def _template() -> bytes:
    """A catalog over a ledger without events, once a process: making the views takes ten times as long as the rest."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _write_schema(root)
        with duckdb.connect(config={"file_search_path": folder}) as connection:
            path = quoted(str(root / layout.CATALOG))
            connection.execute(f"ATTACH {path} AS ledger (STORAGE_VERSION {quoted(_STORAGE_VERSION)})")
            connection.execute("USE ledger")
            connection.execute(f"CREATE VIEW stored_event AS {_stored([layout.SCHEMA_FILE])}")
            connection.execute("BEGIN")
            for view in VIEWS:
                connection.execute(sql.read(f"views/{view}.sql"))
                connection.execute(f"COMMENT ON VIEW {view} IS {quoted(comments(view)[0])}")
            shared = comments("event")[1]
            named = "SELECT table_name, column_name FROM duckdb_columns() WHERE table_name IN (SELECT unnest(?))"
            for view, column in connection.execute(named, [VIEWS]).fetchall():
                if text := {**shared, **comments(view)[1]}.get(column):
                    connection.execute(f'COMMENT ON COLUMN {view}."{column}" IS {quoted(text)}')
            connection.execute("COMMIT")
        return (root / layout.CATALOG).read_bytes()


def _attach(connection: duckdb.DuckDBPyConnection, root: Path) -> None:
    attach = f"ATTACH {quoted(str(root / layout.CATALOG))} AS ledger (READ_ONLY)"
    try:
        connection.execute(attach)
    except duckdb.Error:
        # Missing, damaged, or held by a client that opened it for writing: a new file has none of these troubles.
        try:
            refresh(root)
        except OSError as error:
            raise LedgerError(
                f"{root / layout.CATALOG} cannot be read and not be replaced ({error.strerror}): "
                "a client may have opened it for writing; open it read-only there"
            ) from error
        connection.execute(attach)


def _patterns(root: Path) -> list[str]:
    """Patterns of all Parquet files of the ledger, relative to it."""
    parts = [part.pattern for writer in layout.writers(root) for part in layout.parts(root, writer)]
    return [layout.SCHEMA_FILE, *parts]


def _stored(patterns: list[str]) -> str:
    return f"SELECT * FROM read_parquet([{', '.join(map(quoted, patterns))}], union_by_name = true)"


def quoted(text: str) -> str:
    """`text` as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def _write_schema(root: Path) -> None:
    """Make sure the file that has every column stands, with the columns of this version."""
    path = root / layout.SCHEMA_FILE
    if not path.exists() or not set(rows.schema().names) <= set(pq.read_schema(path).names):
        temporary = path.with_name(f".{path.name}.tmp")
        pq.write_table(rows.schema().empty_table(), temporary, store_schema=False)
        layout.replace_file(temporary, path)
