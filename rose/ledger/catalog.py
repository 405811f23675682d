"""The catalog: a DuckDB file that holds views and no data, so that a reader never meets a writer's lock.

Its sources are `stored_event`, the segments of every part of the ledger; `unrolled_stored_event`, those that the
roll-ups do not count yet; and the roll-ups. Everything else is in `sql/views`. The file is replaced atomically when a
writer or a new epoch appears and when a compaction, an archiving or a roll-up is done; segments added to an epoch show
without that.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import io
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
#: Where a catalog is made if there is this much room, several times what it takes.
_MEMORY, _BUILD_BYTES = Path("/dev/shm"), 8 * 1024**2
#: A folder in which a catalog is made is locked by then, or was left behind by a process that was killed.
_LOCKED_S = 10
#: How far a roll-up goes: what stood before, and of each writer the last epoch and the seq after it.
Span = tuple[Coverage | None, dict[str, tuple[int, int]]]


def refresh(root: Path | str) -> None:
    """Replace the ledger's catalog by one that reads every part there is now.

    Raises LedgerError if a part cannot be read, and OSError if the disk refuses; the old catalog then stands.
    """
    root = layout.check(root)
    lock = root / "locks" / "catalog.lock"
    with layout.locked(lock):
        # Files are written under the lock alone, so these were left behind by a process that was killed.
        for name in (layout.CATALOG, layout.SCHEMA_FILE):
            for leftover in root.glob(f".{name}.*"):
                leftover.unlink(missing_ok=True)
        write_schema(root)
    try:
        for attempt in range(_ATTEMPTS):
            sources = _sources(root)
            content = _build(root, sources)
            # Built outside the lock: a background job that hardly gets the processor must not hold up a writer.
            with layout.locked(lock):
                if (current := _sources(root)) != sources:
                    if attempt < _ATTEMPTS - 1:
                        continue
                    content = _build(root, current)
                layout.write_file(root / layout.CATALOG, content, read_back=True)
            break
    except duckdb.Error as error:
        raise LedgerError(
            f"cannot write the catalog of {root}: {error}\n"
            "`rose ledger verify` names what is damaged; put it back from a copy, or move it out of the ledger"
        ) from error


def _build(root: Path, sources: dict[str, str]) -> bytes:
    """The bytes of a catalog for `sources`. Raises duckdb.Error if a source cannot be read, OSError without room."""
    # Before the first roll-up the template's own views of nothing do; a view takes a while to make.
    made = {name: select for name, select in sources.items() if select != _no_roll_up(name)}
    # Patterns relative to the ledger let the folder move; DuckDB finds them here by its search path.
    config: dict[str, str | bool | int | float | list[str]] = {"file_search_path": str(root)}
    template = _template()
    try:
        with _building() as path, duckdb.connect(config=config) as connection:
            path.write_bytes(template)
            attach = f"ATTACH {quoted(str(path))} AS ledger"
            connection.execute(attach)
            connection.execute("USE ledger")
            _make(connection, made, temporary=False)
            for name in made:
                connection.execute(f"COMMENT ON VIEW {name} IS {quoted(_INTERNAL_COMMENT)}")
            connection.execute(f"CREATE MACRO {_signature(sources)}() AS true")
            _close(connection)
            connection.execute(f"{attach} (READ_ONLY)")
            if not _is_for(connection, sources):
                raise OSError(errno.EIO, "it does not read what it was made for")
            return path.read_bytes()
    except OSError:
        with duckdb.connect(config=config) as reader:
            _make(reader, made)
        raise


@contextmanager
def _building() -> Iterator[Path]:
    """Where to make a catalog: in memory, or else on the disk for temporary files; the ledger's meets one plain write.

    What is raised inside is raised as OSError.
    """
    prefix = "rose-catalog-"
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _BUILD_BYTES
    home = _MEMORY if roomy else Path(tempfile.gettempdir())
    for leftover in home.glob(f"{prefix}*"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _LOCKED_S:
                with _locked_folder(leftover, fcntl.LOCK_NB):
                    shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=home) as folder, _locked_folder(Path(folder)):
        try:
            yield Path(folder) / layout.CATALOG
        except (duckdb.Error, OSError) as error:
            number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
            raise OSError(number, f"no catalog can be made in {folder}: {error}") from error


@contextmanager
def _locked_folder(folder: Path, flags: int = 0) -> Iterator[None]:
    """Hold `folder` as one in which a catalog is being made; the kernel lets go of it when the process ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)


def _close(connection: duckdb.DuckDBPyConnection) -> None:
    """Bring the attached catalog to its file, and let go of it. A connection that closes hides that it could not."""
    connection.execute("CHECKPOINT ledger")
    connection.execute("USE memory")
    connection.execute("DETACH ledger")


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
    with _building() as file:
        root = file.parent
        write_schema(root)
        with duckdb.connect(config={"file_search_path": str(root)}) as connection:
            connection.execute(f"ATTACH {quoted(str(file))} AS ledger (STORAGE_VERSION {quoted(_STORAGE_VERSION)})")
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
            _close(connection)
        return file.read_bytes()


def _attach(connection: duckdb.DuckDBPyConnection, root: Path) -> None:
    try:
        connection.execute(f"ATTACH {quoted(str(root / layout.CATALOG))} AS ledger (READ_ONLY)")
    except duckdb.Error:
        # Missing, damaged, or held by a client that opened it for writing: a new file has none of these troubles.
        _attach_new(connection, root)


def _attach_new(connection: duckdb.DuckDBPyConnection, root: Path) -> None:
    """Attach a new catalog: of the ledger, or of this connection alone where the ledger's disk refuses it."""
    try:
        refresh(root)
        connection.execute(f"ATTACH {quoted(str(root / layout.CATALOG))} AS ledger (READ_ONLY)")
    except OSError as refusal:
        try:
            content = _build(root, _sources(root))
            with _building() as path:
                path.write_bytes(content)
                # Once it is open it needs no name.
                connection.execute(f"ATTACH {quoted(str(path))} AS ledger (READ_ONLY)")
        except OSError as error:
            raise LedgerError(
                f"{root / layout.CATALOG} does not read what lies there now and cannot be replaced "
                f"({refusal.strerror}): {layout.way_out(refusal)}. Nor can it be read without that: {error.strerror}"
            ) from error


def _replace(connection: duckdb.DuckDBPyConnection, root: Path) -> None:
    """Attach a new catalog in the place of the one that is attached."""
    connection.execute("USE memory")
    connection.execute("DETACH ledger")
    _attach_new(connection, root)
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
