"""The catalog: a DuckDB file that holds views and no data, so that a reader never meets a writer's lock.

Its sources are `stored_event`, the segments of every part of the ledger; `unrolled_stored_event`, those that the
roll-ups do not count yet; and the roll-ups. Everything else is in `sql/views`. The file is replaced atomically when a
writer or a new epoch appears and when a compaction, an archiving or a roll-up is done; segments added to an epoch show
without that.

Anyone who may write to the folder may put another file in its place, so nothing in it is taken on trust: `connect`
compares all that it defines with what it must define, and makes it anew where they differ.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import duckdb

import sql
from rose.ledger import catalog_file, database, layout, rows, sources
from rose.ledger.checks import schema_file
from rose.ledger.growth import rolled
from rose.ledger.growth.rolled import CLIENT_ID, ROLLUPS
from rose.ledger.layout import LedgerError

#: The views, in the order in which they can be made; the public interface of the ledger.
VIEWS = (
    "event",
    "run",
    "device",
    "tenure",
    "engine",
    "lease",
    "lease_event",
    "preemption",
    "hold",
    "holdout",
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
    "scale_down",
    "clock",
    "job",
    "access",
    *ROLLUPS,
)
#: Views that others are made of; not part of the interface.
INTERNAL = (
    "writer_order",
    "stored_event",
    "unrolled_stored_event",
    "retry",
    "unrolled_retry",
    "unrolled_event",
    *(f"{made}_{name}" for name in ROLLUPS for made in ("rolled", "unrolled")),
    f"rolled_{CLIENT_ID}",
)
#: Those of them that `sql/rollups` defines, in the order in which they can be made.
_UNROLLED = ("retry", "unrolled_retry", "unrolled_event", *(f"unrolled_{name}" for name in ROLLUPS))
quoted = catalog_file.quoted
_MOVED = "it reads the files at"
_DEFINITIONS = "SELECT view_name, sql FROM duckdb_views() WHERE database_name = 'ledger' AND NOT internal"
_INTERNAL_COMMENT = "Internal: what other views are made of. "
#: How often a catalog is built anew because the ledger grew meanwhile, before the ledger has to wait for it.
_ATTEMPTS = 4
#: How often a reader makes a catalog anew, while writers of other epochs replace it, before it gives up.
_OPENINGS = 10
#: The key of the catalog that this process compared, by ledger: comparing takes as long as opening.
_compared: dict[Path, tuple[dict[str, str], str]] = {}


def refresh(root: Path | str) -> None:
    """Replace the ledger's catalog by one that reads every part there is now.

    Raises LedgerError if a file that it has to read is damaged, and OSError if the disk refuses; the old catalog then
    stands.
    """
    root = layout.check(root)
    lock = root / "locks" / "catalog.lock"
    with layout.locked(lock):
        # Files are written under the lock alone, so these were left behind by a process that was killed.
        for name in (layout.CATALOG, layout.SCHEMA_FILE):
            for leftover in root.glob(f".{name}.*"):
                leftover.unlink(missing_ok=True)
        schema_file.write(root)
    try:
        for attempt in range(_ATTEMPTS):
            selects = sources.selects(root)
            content = _build(root, selects)
            # Built outside the lock: a background job that hardly gets the processor must not hold up a writer.
            with layout.locked(lock):
                if (current := sources.selects(root)) != selects:
                    if attempt < _ATTEMPTS - 1:
                        continue
                    content = _build(root, current)
                layout.write_file(root / layout.CATALOG, content, read_back=True)
            # It was compared when it was built.
            _compared[root] = _key(current, content)
            break
    except duckdb.Error as error:
        raise LedgerError(
            f"cannot write the catalog of {root}: {error}\n"
            "`rose ledger verify` names what is damaged; put it back from a copy, or move it out of the ledger"
        ) from error


def refresh_sound(root: Path) -> None:
    """`refresh` for who takes events in: a damaged file must not keep out what is sound. Every reader is told of it.

    Raises LedgerError if the disk refuses.
    """
    try:
        with suppress(LedgerError):
            refresh(root)
    except OSError as error:
        raise layout.refused(f"cannot replace the catalog of {root}", error) from error


def _build(root: Path, selects: dict[str, str]) -> bytes:
    """The bytes of a catalog for `selects`. Raises duckdb.Error if a source cannot be read, OSError without room."""
    # Before the first roll-up the template's own views of nothing do; a view takes a while to make.
    made = {name: select for name, select in selects.items() if select != sources.no_roll_up(name)}

    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        _make(connection, made, temporary=False)
        for name in made:
            connection.execute(f"COMMENT ON VIEW {name} IS {quoted(_INTERNAL_COMMENT)}")

    template = _template()
    try:
        return catalog_file.make(fill, lambda built: _faults(built, selects, views_only=True), start=template)
    except OSError:
        # Either there is no room, or a source cannot be read: then this fails too, and names it.
        with database.connect() as reader:
            _make(reader, made)
        raise


def connect(root: Path | str) -> duckdb.DuckDBPyConnection:
    """A connection that reads the ledger as it is now, from any working directory, with UTC as its time zone.

    Events that are written later show in later queries, but for those of an epoch begun later: open a connection for
    each piece of work, and never keep one for longer than a compaction's grace period. Raises LedgerError.
    """
    root = layout.check(root)
    # In memory, with the catalog attached: several connections in one process then share no settings. Python
    # variables are never taken for tables.
    connection = database.connect(config={"python_enable_replacements": False})
    try:
        own = _attach(connection, root)
        connection.execute("SET TimeZone = 'UTC'")
        # A query reads the same files for each view that it asks, and of many small ones the footers are most of it.
        connection.execute("SET parquet_metadata_cache = true")
        for _ in range(_OPENINGS):
            # One of this connection's own was compared when it was made; what lies in the ledger is another.
            if own or not _differences(connection, root):
                break
            # Left behind by a writer that was killed at the wrong moment, by another version of ROSE, or edited; or the
            # ledger was moved, and it reads the old place.
            connection.execute("DETACH ledger")
            own = _attach_new(connection, root)
        else:
            raise LedgerError(
                f"{root / layout.CATALOG} is not what was just written there; another program writes it too. Try again"
            )
        # Only now: what a catalog defines goes before DuckDB's own, in the comparison too.
        connection.execute("USE ledger")
    except duckdb.Error as error:
        connection.close()
        raise LedgerError(f"cannot read the ledger at {root}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def limit(connection: duckdb.DuckDBPyConnection, root: Path, until: sources.Span, retry: str) -> None:
    """Make the daily views of a connection give what a roll-up of this span must hold.

    `retry` names a view of the connection with the records that do not count. It is read once, and of all events, also
    those after the span: a roll-up must count no record that readers do not see.
    """
    connection.execute(f"CREATE TEMP TABLE not_counted AS SELECT DISTINCT writer, seq FROM {retry}")
    # Temporary views go before the catalog's own.
    _make(connection, {**sources.selects(root, until), "unrolled_retry": "FROM not_counted"})


def faults(root: Path) -> list[str]:
    """What the catalog of the ledger at `root` (as `layout.check` returns it) defines that it should not, or lacks.

    Of one that is right but for where the ledger lies, only that (see `was_moved`). A ledger without a catalog has no
    fault: the next reader makes one. Changes nothing.
    """
    if not (root / layout.CATALOG).exists() or _is_compared(root, sources.selects(root)):
        return []
    try:
        with database.connect() as connection:
            connection.execute(f"ATTACH {quoted(str(root / layout.CATALOG))} AS ledger (READ_ONLY)")
            definitions = dict(connection.execute(_DEFINITIONS).fetchall())
            place = sources.place(definitions.get("stored_event", "")) or root
            if wrong := _faults(connection, sources.selects(root, place=place)):
                return wrong
    except duckdb.Error as error:
        return [f"it cannot be read: {error}"]
    return [] if place == root else [f"{_MOVED} {place}, from where the ledger was moved or copied"]


def made_of(root: Path) -> str:
    """Names all that the catalog of the ledger at `root` must define now. Raises LedgerError for a damaged roll-up."""
    texts = [duckdb.__version__, *rows.schema().names, *_bodies().values(), *sources.selects(root).values()]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def may_be_late(faults: Sequence[str]) -> bool:
    """Whether these faults are what a catalog has that was made before a file of the ledger came."""
    return all(any(f"view {name} " in fault for name in sources.names()) for fault in faults)


def is_stale(root: Path) -> bool:
    """Whether the catalog is what this version made when fewer files, or others, lay in the ledger.

    A process that is killed between a file and the catalog leaves such a one. Raises LedgerError.
    """
    try:
        with database.connect() as connection:
            connection.execute(f"ATTACH {quoted(str(root / layout.CATALOG))} AS ledger (READ_ONLY)")
            definitions = dict(connection.execute(_DEFINITIONS).fetchall())
            if (files := sources.shown(root, definitions)) is None:
                return False
            place = sources.place(definitions["stored_event"])
            return not _faults(connection, sources.selects(root, place=place, files=files))
    except duckdb.Error:
        return False


def was_moved(faults: Sequence[str]) -> bool:
    """Whether all that is wrong is that the catalog reads the place where the ledger lay before."""
    return all(fault.startswith(_MOVED) for fault in faults)


def _differences(connection: duckdb.DuckDBPyConnection, root: Path) -> list[str]:
    """What the attached catalog defines otherwise than this version of ROSE for the files there are now.

    A file that this process compared before is not compared again.
    """
    selects = sources.selects(root)
    key = _key(selects, (root / layout.CATALOG).read_bytes())
    if _compared.get(root) == key:
        return []
    if not (reasons := _faults(connection, selects)):
        _compared[root] = key
    return reasons


def _is_compared(root: Path, selects: dict[str, str]) -> bool:
    """Whether the catalog of the ledger is, byte for byte, one that this process held against `selects`."""
    try:
        return _compared.get(root) == _key(selects, (root / layout.CATALOG).read_bytes())
    except OSError:
        return False


def _key(selects: dict[str, str], content: bytes) -> tuple[dict[str, str], str]:
    """What a catalog must select, and the SHA-256 of its file."""
    return selects, hashlib.sha256(content).hexdigest()


def _faults(connection: duckdb.DuckDBPyConnection, selects: dict[str, str], *, views_only: bool = False) -> list[str]:
    expected = {**_canonical_bodies(connection), **catalog_file.canonical(connection, selects)}
    return catalog_file.differences(connection, expected, views_only=views_only)


@functools.cache
def _bodies() -> dict[str, str]:
    """What each view selects that is the same in every ledger."""
    unrolled = {name: sql.read(f"rollups/{name.replace('unrolled_daily', 'daily')}.sql") for name in _UNROLLED}
    return unrolled | {view: sql.read(f"views/{view}.sql").partition(f"VIEW {view} AS")[2] for view in VIEWS}


_canonical: dict[str, str] = {}


def _canonical_bodies(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Once a process: it takes as long as opening a catalog."""
    if not _canonical:
        _canonical.update(catalog_file.canonical(connection, _bodies()))
    return _canonical


def readable(root: Path) -> list[str]:
    """The folders that a query over the views reads, as DuckDB's `allowed_directories` wants them."""
    return [f"{root}/{folder}/" for folder in ("live", "compacted", rolled.FOLDER)]


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
    """A catalog over a ledger without events, once for this code: making the views takes ten times as long as all else
    does."""
    texts = [
        duckdb.__version__,
        catalog_file.STORAGE_VERSION,
        # How it is made.
        Path(__file__).read_text(),
        sources.events(Path(), []),
        sources.writer_order(Path(), []),
        *(sources.no_roll_up(f"rolled_{name}") for name in (CLIENT_ID, *ROLLUPS)),
        *_bodies().values(),
        *(sql.read(f"views/{view}.sql") for view in VIEWS),
    ]
    return catalog_file.kept("catalog.duckdb", __file__, "\n".join(texts), _make_template)


def _make_template() -> bytes:
    def fill(connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("BEGIN")
        nothing = sources.events(Path(), [])
        order = {"writer_order": sources.writer_order(Path(), [])}
        _make(connection, {**order, "stored_event": nothing, "unrolled_stored_event": nothing}, temporary=False)
        _make(connection, {f"rolled_{CLIENT_ID}": sources.no_roll_up(f"rolled_{CLIENT_ID}")}, temporary=False)
        _make(connection, {name: _bodies()[name] for name in _UNROLLED}, temporary=False)
        _make(connection, {f"rolled_{name}": sources.no_roll_up(f"rolled_{name}") for name in ROLLUPS}, temporary=False)
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

    return catalog_file.make(fill)


def _attach(connection: duckdb.DuckDBPyConnection, root: Path) -> bool:
    """Attach the ledger's catalog, or a new one; whether that is of this connection alone."""
    try:
        connection.execute(f"ATTACH {quoted(str(root / layout.CATALOG))} AS ledger (READ_ONLY)")
    except duckdb.Error:
        # Missing, damaged, or held by a client that opened it for writing: a new file has none of these troubles.
        return _attach_new(connection, root)
    return False


def _attach_new(connection: duckdb.DuckDBPyConnection, root: Path) -> bool:
    """Attach a new catalog: of the ledger, or of this connection alone where the ledger's disk refuses it."""
    try:
        refresh(root)
        connection.execute(f"ATTACH {quoted(str(root / layout.CATALOG))} AS ledger (READ_ONLY)")
    except OSError as refusal:
        try:
            catalog_file.attach(connection, _build(root, sources.selects(root)))
        except OSError as error:
            raise LedgerError(
                f"{root / layout.CATALOG} does not show the ledger as it is now and cannot be replaced "
                f"({refusal.strerror}): {layout.way_out(refusal)}. It cannot be read as it is, either: {error.strerror}"
            ) from error
        return True
    return False


def _make(connection: duckdb.DuckDBPyConnection, views: dict[str, str], *, temporary: bool = True) -> None:
    for name, select in views.items():
        connection.execute(f"CREATE OR REPLACE {'TEMP ' if temporary else ''}VIEW {name} AS {select}")
