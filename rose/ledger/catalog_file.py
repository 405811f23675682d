"""Making the catalog's file: in memory, where a full disk or a slow one has no part in it, and verified before use."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from rose.ledger import database, layout

#: Older DuckDB clients can open a file of this version.
_STORAGE_VERSION = "v1.5.0"
#: Where a catalog is made if there is this much room, several times what it takes.
_MEMORY, _BUILD_BYTES = Path("/dev/shm"), 8 * 1024**2
#: A folder in which a catalog is made is locked by then, or was left behind by a process that was killed.
_LOCKED_S = 10

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
            connection.execute(f"{attach} (STORAGE_VERSION {quoted(_STORAGE_VERSION)})")
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


def _close(connection: Connection) -> None:
    """Bring the attached catalog to its file, and let go of it. A connection that closes hides that it could not."""
    connection.execute("CHECKPOINT ledger")
    connection.execute("USE memory")
    connection.execute("DETACH ledger")
