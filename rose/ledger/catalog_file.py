"""Making the catalog's file: in memory, where a full disk or a slow one has no part in it, and verified before use."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from rose.ledger import database, layout
from rose.temporary import TemporaryFolder

#: Older DuckDB clients can open a file of this version.
STORAGE_VERSION = "v1.5.0"
#: Where a catalog is made if there is this much room, several times what it takes.
_MEMORY, _BUILD_BYTES = Path("/dev/shm"), 8 * 1024**2

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
