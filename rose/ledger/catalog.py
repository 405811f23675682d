"""The catalog: a DuckDB file that holds views and no data, so that a reader never meets a writer's lock.

Its sources are `stored_event`, the segments of every part of the ledger; `unrolled_stored_event`, those that the
roll-ups do not count yet; and the roll-ups. Everything else is in `sql/views`. The file is replaced atomically when a
writer or a new epoch appears and when a compaction, an archiving or a roll-up is done; segments added to an epoch show
without that.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import tempfile
import threading
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

import sql
from rose.ledger import layout, rows
from rose.ledger.growth import rolled
from rose.ledger.growth.rolled import CLIENT_ID, ROLLUPS, Coverage
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
    "hold",
    "step_time",
    "sync",
    "turn",
    "trajectory",
    "verdict",
    "request",
    "device_slice",
    "faulty_event",
    "step",
    "power",
    "job",
    *ROLLUPS,
)
#: Views that others are made of; not part of the interface.
INTERNAL = (
    "stored_event",
    "unrolled_stored_event",
    "unrolled_event",
    *(f"{made}_{name}" for name in ROLLUPS for made in ("rolled", "unrolled")),
    f"rolled_{CLIENT_ID}",
)
#: Older DuckDB clients can open a file of this version.
_STORAGE_VERSION = "v1.5.0"
_INTERNAL_COMMENT = "Internal: what other views are made of. "
#: How often a catalog is built anew because the ledger grew meanwhile, before the ledger has to wait for it.
_ATTEMPTS = 4
#: How far a roll-up goes: what stood before, and of each writer the last epoch and the seq after it.
Span = tuple[Coverage | None, dict[str, tuple[int, int]]]


def refresh(root: Path | str) -> None:
    """Replace the ledger's catalog by one that reads every part there is now. Raises LedgerError or OSError."""
    root = layout.check(root)
    write_schema(root)
    temporary = root / f".{layout.CATALOG}.{os.getpid()}.{threading.get_ident()}.tmp"
    try:
        for attempt in range(_ATTEMPTS):
            sources = _sources(root)
            _build(root, temporary, sources)
            # Built outside the lock: a background job that hardly gets the processor must not hold up a writer.
            with layout.locked(root / "locks" / "catalog.lock"):
                if (current := _sources(root)) != sources:
                    if attempt < _ATTEMPTS - 1:
                        continue
                    _build(root, temporary, current)
                temporary.replace(root / layout.CATALOG)
            layout.sync_folder(root)
            break
    except duckdb.Error as error:
        raise LedgerError(
            f"cannot write the catalog of {root}: {error}\n"
            "`rose ledger verify` names what is damaged; put it back from a copy, or move it out of the ledger"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
        temporary.with_name(f"{temporary.name}.wal").unlink(missing_ok=True)


def _build(root: Path, path: Path, sources: dict[str, str]) -> None:
    """Write a catalog for `sources` to `path`, and bring it to disk."""
    path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
    path.write_bytes(_template())
    # Patterns relative to the ledger let the folder move; DuckDB finds them here by its search path.
    with duckdb.connect(path, config={"file_search_path": str(root)}) as connection:
        # Before the first roll-up the template's own views of nothing do; a view takes a while to make.
        made = {name: select for name, select in sources.items() if select != _no_roll_up(name)}
        _make(connection, made, temporary=False)
        for name in made:
            connection.execute(f"COMMENT ON VIEW {name} IS {quoted(_INTERNAL_COMMENT)}")
        connection.execute(f"CREATE MACRO {_signature(sources)}() AS true")
    layout.sync_file(path)


def connect(root: Path | str, *, until: Span | None = None) -> duckdb.DuckDBPyConnection:
    """A connection that reads the ledger as it is now, from any working directory, with UTC as its time zone.

    Events that are written later show in later queries, but for those of an epoch begun later: open a connection for
    each piece of work, and never keep one for longer than a compaction's grace period. With `until`, the daily views
    give what a roll-up of that span must hold. Raises LedgerError.
    """
    root = layout.check(root)
    # In memory, with the catalog attached: several connections in one process then share no settings. Python
    # variables are never taken for tables. The search path is where the catalog's relative patterns are found.
    connection = duckdb.connect(config={"python_enable_replacements": False, "file_search_path": str(root)})
    try:
        _attach(connection, root)
        connection.execute("USE ledger")
        connection.execute("SET TimeZone = 'UTC'")
        if not _is_for(connection, _sources(root)):
            # Left behind by a writer that was killed at the wrong moment, or by another version of ROSE.
            _replace(connection, root)
        if until is not None:
            # Temporary views go before the catalog's own.
            _make(connection, _sources(root, until))
    except duckdb.Error as error:
        connection.close()
        raise LedgerError(f"cannot read the ledger at {root}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def readable(root: Path) -> list[str]:
    """The folders that a query over the views reads, as DuckDB's `allowed_directories` wants them.

    It checks a pattern as it stands in a view, and then each file it finds.
    """
    folders = ("live/", "compacted/", f"{rolled.FOLDER}/", layout.SCHEMA_FILE)
    return [*folders, *(f"{root}/{folder}" for folder in folders)]


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
        write_schema(root)
        with duckdb.connect(config={"file_search_path": folder}) as connection:
            path = quoted(str(root / layout.CATALOG))
            connection.execute(f"ATTACH {path} AS ledger (STORAGE_VERSION {quoted(_STORAGE_VERSION)})")
            connection.execute("USE ledger")
            connection.execute("BEGIN")
            sources = _sources(root)
            first = ("stored_event", "unrolled_stored_event")
            _make(connection, {name: sources[name] for name in first}, temporary=False)
            connection.execute(f"CREATE VIEW rolled_{CLIENT_ID} AS {sources[f'rolled_{CLIENT_ID}']}")
            for name in ("unrolled_event", *(f"unrolled_{name}" for name in ROLLUPS)):
                body = sql.read(f"rollups/{name.replace('unrolled_daily', 'daily')}.sql")
                connection.execute(f"CREATE VIEW {name} AS {body}")
            for name in ROLLUPS:
                connection.execute(f"CREATE VIEW rolled_{name} AS {sources[f'rolled_{name}']}")
            for name in INTERNAL:
                connection.execute(f"COMMENT ON VIEW {name} IS {quoted(_INTERNAL_COMMENT)}")
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


def _replace(connection: duckdb.DuckDBPyConnection, root: Path) -> None:
    """Attach a new catalog in the place of the one that is attached."""
    connection.execute("USE memory")
    connection.execute("DETACH ledger")
    try:
        refresh(root)
    except OSError as error:
        raise LedgerError(
            f"{root / layout.CATALOG} was made by another version of ROSE, or for other files than lie there, and it "
            f"cannot be replaced ({error.strerror}): open the ledger once where it may be written"
        ) from error
    _attach(connection, root)
    connection.execute("USE ledger")


def _sources(root: Path, until: Span | None = None) -> dict[str, str]:
    """What each source view selects, in the order in which they can be made."""
    if until is None:
        coverage = rolled.newest(root)
        covered = {} if coverage is None or not coverage.complete else coverage.writers
        ends: dict[str, tuple[int, int]] = {}
    else:
        coverage, ends = until
        covered = {} if coverage is None else coverage.writers
    patterns, unrolled, apart = [layout.SCHEMA_FILE], [layout.SCHEMA_FILE], []
    for writer in layout.writers(root):
        epoch, next_seq = covered.get(writer, (-1, 0))
        end_epoch, end_seq = ends.get(writer, (-1 if ends else 2**62, 0))
        for part in layout.parts(root, writer):
            patterns.append(part.pattern)
            if part.last <= epoch or part.first > end_epoch:
                continue
            unrolled.append(part.pattern)
            # Epochs on both sides of a watermark were merged since.
            if part.first <= epoch:
                apart.append(f"writer = {quoted(writer)} AND seq < {next_seq}")
            if part.last > end_epoch:
                apart.append(f"writer = {quoted(writer)} AND seq >= {end_seq}")
    where = f" WHERE NOT ({' OR '.join(apart)})" if apart else ""
    sources = {"stored_event": stored(patterns), "unrolled_stored_event": stored(unrolled) + where}
    for name in (CLIENT_ID, *ROLLUPS):
        if covered and coverage is not None:
            sources[f"rolled_{name}"] = f"FROM read_parquet({quoted(f'{coverage.folder}/{name}.parquet')})"
        else:
            sources[f"rolled_{name}"] = _no_roll_up(f"rolled_{name}")
    return sources


def _no_roll_up(name: str) -> str:
    """What a view of a roll-up selects before there is one."""
    if name == f"rolled_{CLIENT_ID}":
        return "SELECT run_id, kind, event_id FROM stored_event WHERE false"
    return f"FROM un{name} WHERE false"


def _make(connection: duckdb.DuckDBPyConnection, views: dict[str, str], *, temporary: bool = True) -> None:
    for name, select in views.items():
        connection.execute(f"CREATE OR REPLACE {'TEMP ' if temporary else ''}VIEW {name} AS {select}")


def _is_for(connection: duckdb.DuckDBPyConnection, sources: dict[str, str]) -> bool:
    """Whether the attached catalog was made for exactly these sources."""
    try:
        connection.execute(f"SELECT ledger.{_signature(sources)}()").fetchall()
    except duckdb.CatalogException:
        return False
    return True


def _signature(sources: dict[str, str]) -> str:
    """Name of the macro by which a catalog says what it was made for; a comment takes twenty times as long to read."""
    return "made_for_" + hashlib.sha256("\n".join([_definitions(), *sources.values()]).encode()).hexdigest()


@functools.cache
def _definitions() -> str:
    """All that a catalog holds besides its sources, as text."""
    names = (*(f"views/{name}" for name in VIEWS), *(f"rollups/{name}" for name in ("unrolled_event", *ROLLUPS)))
    return "\n".join([*rows.schema().names, *(sql.read(f"{name}.sql") for name in names)])


def stored(patterns: list[str]) -> str:
    """A SELECT of all rows in these files: paths or patterns, with the columns of all of them."""
    return f"SELECT * FROM read_parquet([{', '.join(map(quoted, patterns))}], union_by_name = true)"


def quoted(text: str) -> str:
    """`text` as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def write_schema(root: Path) -> None:
    """Make sure the file that has every column stands, with the columns of this version."""
    path = root / layout.SCHEMA_FILE
    if not path.exists() or not set(rows.schema().names) <= set(pq.read_schema(path).names):
        buffer = io.BytesIO()
        pq.write_table(rows.schema().empty_table(), buffer, store_schema=False)
        layout.write_file(path, buffer.getvalue())
