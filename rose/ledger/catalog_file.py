"""The catalog's file: made in memory, where a full or slow disk has no part in it, kept, and compared before use.

A macro in a catalog goes before DuckDB's function of the same name, in every view; so does a type. `differences`
therefore names all that a catalog defines beside its views.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

import sql
from rose.ledger import database, layout
from rose.private_files import TemporaryFolder

#: Older DuckDB clients can open a file of this version.
STORAGE_VERSION = "v1.5.0"
#: Where a catalog is made if there is this much room, several times what it takes.
_MEMORY, _BUILD_BYTES = Path("/dev/shm"), 8 * 1024**2
_DIGEST_BYTES = 32
_VIEWS = "SELECT 'view', view_name, sql FROM duckdb_views() WHERE database_name = 'ledger' AND NOT internal"
#: DuckDB keeps the names after EXCLUDE as a set, and gives them in another order each time it reads them back.
_EXCLUDED = re.compile(r"(?<=EXCLUDE \()[^()]+(?=\))")

Connection = duckdb.DuckDBPyConnection


def make(
    fill: Callable[[Connection], None],
    faults: Callable[[Connection], list[str]] = lambda connection: [],
    *,
    start: bytes | None = None,
) -> bytes:
    """The bytes of a catalog that `fill` made, from `start` if it is given.

    It is brought to its file, opened again as a reader does, and asked for its faults. Raises OSError: for want of
    room, for what `fill` raises of DuckDB's, or if it has faults.
    """
    with _building() as path, database.connect() as connection:
        attach = f"ATTACH {quoted(str(path))} AS ledger"
        if start is None:
            connection.execute(f"{attach} (STORAGE_VERSION {quoted(STORAGE_VERSION)})")
        else:
            path.write_bytes(start)
            connection.execute(attach)
        connection.execute("USE ledger")
        fill(connection)
        _close(connection)
        connection.execute(f"{attach} (READ_ONLY)")
        if wrong := faults(connection):
            raise OSError(errno.EIO, f"it is not what was made: {wrong[0]}")
        return path.read_bytes()


def attach(connection: Connection, content: bytes) -> None:
    """Attach a catalog with these bytes as `ledger`, for this connection alone. Raises OSError."""
    with _building() as path:
        path.write_bytes(content)
        # Once it is open it needs no name.
        connection.execute(f"ATTACH {quoted(str(path))} AS ledger (READ_ONLY)")


def kept(name: str, source: str, made_of: str, make: Callable[[], bytes]) -> bytes:
    """Return what `make` gives, kept as `name` beside the module in the file `source` while `made_of` is the same.

    A file that is damaged, or of something else, is replaced. Where nothing may be written each process makes it anew.
    """
    path = Path(importlib.util.cache_from_source(source)).with_name(name)
    key = hashlib.sha256(made_of.encode()).digest()
    with suppress(OSError):
        file = path.read_bytes()
        digest, content = file[:_DIGEST_BYTES], file[_DIGEST_BYTES:]
        if digest == _digest(key, content):
            return content
    content = make()
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            # One that did not come to disk is damaged, and no more than that.
            layout.write_file(path, _digest(key, content) + content, sync=False)
    return content


def canonical(connection: duckdb.DuckDBPyConnection, bodies: Mapping[str, str]) -> dict[str, str]:
    """Each SELECT as DuckDB writes it down again after reading it: the text that it gives of a view."""
    listed = [body.strip().removesuffix(";") for body in bodies.values()]
    select = "SELECT json_deserialize_sql(json_serialize_sql(body)) FROM (SELECT unnest(?::VARCHAR[]) AS body)"
    texts = [text for (text,) in connection.execute(select, [listed]).fetchall()]
    return dict(zip(bodies, texts, strict=True))


def differences(
    connection: duckdb.DuckDBPyConnection, expected: Mapping[str, str], *, views_only: bool = False
) -> list[str]:
    """How the database attached as `ledger` differs from one with these views, as text; empty if it does not.

    `views_only` is for one that this process made, where nothing else can be: to list macros takes longest.
    """
    problems, missing = [], dict(expected)
    contents = _VIEWS if views_only else sql.read("checks/contents.sql")
    for kind, name, definition in connection.execute(contents).fetchall():
        if kind != "view" or name not in expected:
            problems.append(f"{kind} {name} is foreign")
            continue
        del missing[name]
        texts = [f"CREATE VIEW {text} AS {expected[name]};" for text in (name, f'"{name}"')]
        if _ordered(definition.rstrip()) not in map(_ordered, texts):
            problems.append(f"view {name} is not what this version of ROSE makes of the files here")
    return [*problems, *(f"view {name} is missing" for name in missing)]


def quoted(text: str) -> str:
    """`text` as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def _building() -> Iterator[Path]:
    """Where to make a catalog: in memory, or else on the disk for temporary files; the ledger's meets one plain write.

    What is raised inside is raised as OSError.
    """
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _BUILD_BYTES
    with TemporaryFolder("rose-catalog-", _MEMORY if roomy else None) as folder:
        try:
            yield folder / layout.CATALOG
        except (duckdb.Error, OSError) as error:
            number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
            raise OSError(number, f"no catalog can be made in {folder}: {error}") from error


def _close(connection: Connection) -> None:
    """Bring the attached catalog to its file, and let go of it. A connection that closes hides that it could not."""
    connection.execute("CHECKPOINT ledger")
    connection.execute("USE memory")
    connection.execute("DETACH ledger")


def _digest(key: bytes, content: bytes) -> bytes:
    return hashlib.sha256(key + content).digest()


def _ordered(text: str) -> str:
    return _EXCLUDED.sub(lambda names: ", ".join(sorted(names[0].split(", "))), text)
