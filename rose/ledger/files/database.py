"""Opens DuckDB in the same way for every part of ROSE."""

import ctypes
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import duckdb

_idle: list[duckdb.DuckDBPyConnection] = []  # Databases in memory without a user, newest last.
_IDLE_AT_MOST = 4
_IDLE_BYTES = 16 << 20  # A database that caches more file data is closed.
_MEMORY = "SELECT coalesce(sum(memory_usage_bytes), 0) FROM duckdb_memory()"


def connect(
    path: str = ":memory:", *, config: Mapping[str, str | bool | int | float | list[str]] | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a connection without a progress bar, which would mix with JSON on stdout."""
    connection = duckdb.connect(path, config=dict(config or {}))
    connection.execute("SET enable_progress_bar = false")
    return connection


def empty() -> duckdb.DuckDBPyConnection:
    """Return a connection to an empty database in memory. After use, the database is kept and given to a later caller.
    So attach another database only under the name `ledger`: a database of any other name stays attached."""
    try:
        database = _idle.pop()
    except IndexError:
        database = connect(config={"python_enable_replacements": False})
    connection = database.cursor()
    connection.execute("SET enable_progress_bar = false")
    weakref.finalize(connection, _take_back, database, os.getpid()).atexit = False
    return connection


@contextmanager
def one_thread(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let DuckDB use one thread in the block. More threads hold many rows in memory, to return them in order."""
    ((threads,),) = connection.execute("SELECT current_setting('threads')").fetchall()
    connection.execute("SET threads = 1")
    try:
        yield
    finally:
        connection.execute(f"SET threads = {threads}")


def _take_back(database: duckdb.DuckDBPyConnection, process: int) -> None:
    if process != os.getpid():
        _leave_open(database)
        return
    with suppress(duckdb.Error):  # After some errors a database refuses every statement, a locked one every setting.
        database.execute("SET enable_progress_bar = false")
        database.execute("DETACH DATABASE IF EXISTS ledger")
        ((memory,),) = database.execute(_MEMORY).fetchall()
        if memory < _IDLE_BYTES and len(_idle) < _IDLE_AT_MOST:
            _idle.append(database)


def _leave_open(database: duckdb.DuckDBPyConnection) -> None:
    """In a forked process, never close the parent's database: closing it would end this process with SIGSEGV."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))


def _forked() -> None:
    for database in _idle:
        _leave_open(database)
    _idle.clear()


os.register_at_fork(after_in_child=_forked)
