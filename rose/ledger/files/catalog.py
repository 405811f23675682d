"""The catalog: a DuckDB file with views and no data. So no reader has to wait for a writer's lock.

All views are in the schema `internal`. For other clients, the schema `main` repeats the documented views. The sources
are `stored_event` (all segments), `unrolled_stored_event` (segments that are in no roll-up) and the roll-ups. Any user
of the folder may replace the file. So `connect` checks all definitions, and makes a new file if they are wrong."""

import errno
import functools
import hashlib
import importlib.util
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

import sql
from rose.ledger.files import database, layout, rows, sources
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.rolled import ROLLUPS
from rose.private_files import TemporaryFolder

#: The views in `sql/views`, in an order in which they can be made.
_VIEWS = (
    *("event", "run", "device", "tenure", "uncounted_time", "engine", *ROLLUPS),
    *("lease", "lease_event", "preemption", "hold", "holdout", "step_time", "sync", "turn", "trajectory", "verdict"),
    *("request", "device_slice", "faulty_event", "step", "power", "scale_down", "clock", "job", "access"),
)
#: The public interface.
VIEWS = tuple(view for view in _VIEWS if view != "uncounted_time")
#: Internal views of `sql/rollups`, in an order in which they can be made.
_UNROLLED = ("retry", "unrolled_retry", "unrolled_event", *(f"unrolled_{name}" for name in ROLLUPS))
#: All views that `connect` lets a catalog have.
NAMES = frozenset({*_VIEWS, *_UNROLLED, *sources.of_nothing()})
STORAGE_VERSION = "v1.5.0"
_MEMORY, _BUILD_BYTES = Path("/dev/shm"), 8 * 1024**2
_DIGEST_BYTES = 32
#: DuckDB gives the names after EXCLUDE in another order each time.
_EXCLUDED = re.compile(r"(?<=EXCLUDE \()[^()]+(?=\))")
#: By ledger: the selects and the file's SHA-256 of the last comparison, which takes as long as opening the catalog.
_compared: dict[Path, tuple[dict[str, str], str]] = {}
_canonical: dict[str, str] = {}
_shown: dict[str, str] = {}

Connection = duckdb.DuckDBPyConnection
quoted = sources.quoted


def connect(root: Path | str) -> Connection:
    """Return a connection, in UTC, to the ledger as it is now. Close it soon: compaction removes files that it uses."""
    root = layout.check(root)
    connection = database.empty()
    try:
        if not _attach_current(connection, root):
            _attach_new(connection, root)
        connection.execute("SET TimeZone = 'UTC'")
        # A query reads the same files for each of its views, and most of a small file is its footer.
        connection.execute("SET parquet_metadata_cache = true")
        # Last: a catalog's definitions hide DuckDB's own, in the comparison too.
        connection.execute("USE ledger.internal")
    except BaseException as error:
        connection.close()
        if isinstance(error, duckdb.Error):
            raise LedgerError(f"cannot read the ledger at {root}: {error}") from error
        raise
    return connection


def _attach_current(connection: Connection, root: Path) -> bool:
    path = root / layout.CATALOG
    selects = sources.selects(root)
    try:
        connection.execute(f"ATTACH {quoted(str(path))} AS ledger (READ_ONLY)")
        # The file may be stale, of another version, edited, or of a ledger that was moved since.
        key = selects, hashlib.sha256(path.read_bytes()).hexdigest()
        if _compared.get(root) == key or not _faults(connection, selects):
            _compared[root] = key
            return True
    except (duckdb.Error, OSError):
        pass  # Missing, damaged, or open for writing in another client: a new file helps.
    connection.execute("DETACH DATABASE IF EXISTS ledger")
    return False


def _attach_new(connection: Connection, root: Path) -> None:
    refusal: OSError | None = None
    try:
        try:
            content = refresh(root)
        except OSError as error:
            refusal = error
            content = _build(root, sources.selects(root))
        with _building() as path:
            path.write_bytes(content)
            connection.execute(f"ATTACH {quoted(str(path))} AS ledger (READ_ONLY)")
    except OSError as error:
        why = "" if refusal is None else f" and cannot be replaced ({refusal.strerror}): {layout.way_out(refusal)}"
        raise LedgerError(
            f"{root / layout.CATALOG} does not show the ledger as it is now{why}. A temporary catalog failed too: "
            f"{error.strerror}"
        ) from error


def refresh(root: Path | str) -> bytes:
    """Update the catalog to read all current parts, and return its bytes. Raises LedgerError or OSError."""
    root = layout.check(root)
    try:
        selects = sources.selects(root)
        if (content := _in_place(root, selects)) is not None:
            return content
        # Built outside the lock: a background job with little processor time must not delay a writer.
        content = _build(root, selects)
        with layout.locked(root / "locks" / "catalog.lock"):
            for leftover in root.glob(f".{layout.CATALOG}.*"):
                leftover.unlink(missing_ok=True)
            if (current := sources.selects(root)) != selects:
                content = _build(root, current)
            layout.write_file(root / layout.CATALOG, content, read_back=True)
        _compared[root] = current, hashlib.sha256(content).hexdigest()
        return content
    except duckdb.Error as error:
        raise LedgerError(
            f"cannot write the catalog of {root}: {layout.unreadable(error)}; replace a damaged file by a good copy, "
            "or move it out of the ledger"
        ) from error


def _in_place(root: Path, selects: dict[str, str]) -> bytes | None:
    with suppress(OSError):
        content = (root / layout.CATALOG).read_bytes()
        if _compared.get(root) == (selects, hashlib.sha256(content).hexdigest()):
            return content
    return None


def refresh_sound(root: Path) -> None:
    with layout.refusals(f"cannot replace the catalog of {root}"), suppress(LedgerError):
        refresh(root)


def limit(connection: Connection, root: Path, until: sources.Span, retry: str) -> None:
    """Limit the daily views of `connection` to events up to `until`. They then show what a roll-up would store. Records
    in the view `retry` are not counted, because they repeat other records."""
    connection.execute(f"CREATE TEMP TABLE not_counted AS SELECT DISTINCT writer, seq FROM {retry}")
    _make(connection, {**sources.selects(root, until), "unrolled_retry": "FROM not_counted"}, "TEMP VIEW")


def faults(root: Path) -> tuple[list[str], list[str]]:
    """Return the wrong or missing definitions in the catalog, and notes that it is stale or that the ledger moved."""
    path, selects = root / layout.CATALOG, sources.selects(root)
    if _in_place(root, selects) is not None or not path.exists():
        return [], []
    try:
        with database.empty() as connection:
            connection.execute(f"ATTACH {quoted(str(path))} AS ledger (READ_ONLY)")
            listed = "SELECT view_name, sql FROM duckdb_views() WHERE schema_name = 'internal'"
            definitions = dict(connection.execute(listed).fetchall())
            place = sources.place(definitions.get("stored_event", "")) or root
            if not (wrong := _faults(connection, sources.selects(root, place=place))):
                return [], [] if place == root else [f"it reads the files at {place}, from where the ledger was moved"]
            files = sources.shown(root, definitions)
            if files is not None and not _faults(connection, sources.selects(root, place=place, files=files)):
                return [], ["it is stale, and does not show the newest files"]
            return wrong, []
    except duckdb.Error as error:
        return [f"it cannot be read: {error}"], []


def made_of(root: Path) -> str:
    texts = [duckdb.__version__, *rows.schema().names, *_bodies().values(), *sources.selects(root).values()]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@functools.cache
def comments(view: str) -> dict[str, str]:
    """Return the comments on a view's columns, and under "" the comment on the view itself."""
    head = itertools.takewhile(lambda line: line.startswith("--"), sql.view(view).splitlines())
    about, _, documented = re.sub(r"^-- ?", "", "\n".join(head), flags=re.MULTILINE).partition("\n\n")
    entries = re.findall(r"^(\w+): (.+(?:\n {4}.+)*)", documented, re.MULTILINE)
    own = {column: " ".join(text.split()) for column, text in [("", about), *entries]}
    return own if view == "event" else comments("event") | own


def _faults(connection: Connection, selects: Mapping[str, str]) -> list[str]:
    if not _canonical:
        _canonical.update(_as_stored(connection, _bodies()))
        _shown.update(_as_stored(connection, {view: f"FROM internal.{view}" for view in VIEWS}))
    expected = {f"internal.{name}": body for name, body in {**_canonical, **_as_stored(connection, selects)}.items()}
    expected |= _shown
    problems, missing = [], dict(expected)
    for kind, name, definition in connection.execute(sql.read("checks/contents.sql")).fetchall():
        if kind == "comment":
            view, _, column = name.partition(".")
            if definition != (comments(view).get(column) if view in VIEWS else None):
                problems.append(f"the comment on {name} differs from this version of ROSE")
            continue
        if kind != "view" or name not in expected:
            problems.append(f"{kind} {name} is foreign")
            continue
        del missing[name]
        schema, dot, view = name.rpartition(".")
        texts = [f"CREATE VIEW {schema}{dot}{text} AS {expected[name]};" for text in (view, f'"{view}"')]
        if _ordered(definition.rstrip()) not in map(_ordered, texts):
            problems.append(f"view {name} differs from this version of ROSE for these files")
    return [*problems, *(f"view {name} is missing" for name in missing)]


def _as_stored(connection: Connection, bodies: Mapping[str, str]) -> dict[str, str]:
    listed = [body.strip().removesuffix(";") for body in bodies.values()]
    select = "SELECT json_deserialize_sql(json_serialize_sql(body)) FROM (SELECT unnest(?::VARCHAR[]) AS body)"
    texts = [text for (text,) in connection.execute(select, [listed]).fetchall()]
    return dict(zip(bodies, texts, strict=True))


def _ordered(text: str) -> str:
    return _EXCLUDED.sub(lambda names: ", ".join(sorted(names[0].split(", "))), text)


@functools.cache
def _bodies() -> dict[str, str]:
    unrolled = {name: sql.read(f"rollups/{name.replace('unrolled_daily', 'daily')}.sql") for name in _UNROLLED}
    return unrolled | {view: sql.view(view).partition(f"VIEW {view} AS")[2] for view in _VIEWS}


def _build(root: Path, selects: dict[str, str]) -> bytes:
    own = {name: select for name, select in selects.items() if select != sources.no_roll_up(name)}
    try:
        return _made(lambda connection: _make(connection, own), _template())
    except OSError:
        # There is no room, or a source cannot be read: then this fails too, and names it.
        with database.empty() as reader:
            _make(reader, own, "TEMP VIEW")
        raise


@functools.cache
def _template() -> bytes:
    """Return a catalog of an empty ledger. It is kept on disk, because creating the views is slow."""
    code = [duckdb.__version__, STORAGE_VERSION, Path(__file__).read_text()]
    texts = [*code, *sources.of_nothing().values(), *_bodies().values(), *(sql.view(view) for view in VIEWS)]
    return kept("catalog.duckdb", __file__, "\n".join(texts), lambda: _made(_fill_template))


def _fill_template(connection: Connection) -> None:
    connection.execute("BEGIN")
    daily = [f"rolled_{name}" for name in ROLLUPS]
    _make(connection, {name: select for name, select in sources.of_nothing().items() if name not in daily})
    _make(connection, {name: _bodies()[name] for name in _UNROLLED})
    _make(connection, {name: sources.of_nothing()[name] for name in daily})
    for view in _VIEWS:
        connection.execute(sql.view(view))
    for view in VIEWS:
        connection.execute(f"CREATE VIEW main.{view} AS FROM internal.{view}")
        connection.execute(f"COMMENT ON VIEW main.{view} IS {quoted(comments(view)[''])}")
    columns = (
        "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'ledger' AND schema_name = 'main'"
    )
    for view, column in connection.execute(columns).fetchall():
        if text := comments(view).get(column):
            connection.execute(f'COMMENT ON COLUMN main.{view}."{column}" IS {quoted(text)}')
    connection.execute("COMMIT")


def kept(name: str, source: str, made_of: str, make: Callable[[], bytes]) -> bytes:
    """Return the bytes that `make` returns, from a cache if possible. The cache is the file `name` in the bytecode
    folder of the source file `source`. It is valid as long as `made_of`, a text of all inputs, stays the same."""
    path = Path(importlib.util.cache_from_source(source)).with_name(name)

    def digest(content: bytes) -> bytes:
        return hashlib.sha256(made_of.encode() + content).digest()

    with suppress(OSError):
        file = path.read_bytes()
        if file[:_DIGEST_BYTES] == digest(file[_DIGEST_BYTES:]):
            return file[_DIGEST_BYTES:]
    content = make()
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            layout.write_file(path, digest(content) + content, sync=False)
    return content


def _made(fill: Callable[[Connection], None], start: bytes | None = None) -> bytes:
    """Return the bytes of `start` (None: an empty catalog) after `fill` has added to it. Every error is an OSError."""
    with _building() as path, database.empty() as connection:
        attach = f"ATTACH {quoted(str(path))} AS ledger"
        if start is None:
            connection.execute(f"{attach} (STORAGE_VERSION {quoted(STORAGE_VERSION)})")
            connection.execute("CREATE SCHEMA ledger.internal")
        else:
            path.write_bytes(start)
            connection.execute(attach)
        connection.execute("USE ledger.internal")
        fill(connection)
        connection.execute("CHECKPOINT ledger")  # Closing a connection hides that its file is incomplete.
        connection.execute("USE memory")
        connection.execute("DETACH ledger")
        return path.read_bytes()


@contextmanager
def _building() -> Iterator[Path]:
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _BUILD_BYTES
    with TemporaryFolder("rose-catalog-", _MEMORY if roomy else None) as folder:
        try:
            yield folder / layout.CATALOG
        except (duckdb.Error, OSError) as error:
            number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
            raise OSError(number, f"no catalog can be made in {folder}: {error}") from error


def _make(connection: Connection, views: Mapping[str, str], kind: str = "VIEW") -> None:
    for name, select in views.items():
        connection.execute(f"CREATE OR REPLACE {kind} {name} AS {select}")
