"""DuckDB as every part of ROSE opens it."""

import ctypes
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import duckdb

#: Databases in memory that nobody uses now, newest last.
_idle: list[duckdb.DuckDBPyConnection] = []
_IDLE_AT_MOST = 4
_IDLE_BYTES = 16 << 20  # A database that keeps more of the files that it read is closed.
_MEMORY = "SELECT coalesce(sum(memory_usage_bytes), 0) FROM duckdb_memory()"


def connect(
    path: str = ":memory:", *, config: Mapping[str, str | bool | int | float | list[str]] | None = None
) -> duckdb.DuckDBPyConnection:
    """Return `duckdb.connect` without the progress bar, which would be drawn into JSON on standard output of a process
    that `multiprocessing` spawned. Raises duckdb.Error."""
    connection = duckdb.connect(path, config=dict(config or {}))
    connection.execute("SET enable_progress_bar = false")
    return connection


def empty() -> duckdb.DuckDBPyConnection:
    """Return a connection to an empty database in memory, one that was used before if there is one: a new one takes as
    long as ten small queries. Nobody else has it until the connection is garbage. Tables, views and macros must be
    temporary, an attached database has the name `ledger`, and settings are set back. Python variables are never taken
    for tables. Raises duckdb.Error."""
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
    """Let a block use one thread: several would each hold rows of many files, to keep their order."""
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
    with suppress(duckdb.Error):  # After some errors a database refuses everything, and a locked one every setting.
        database.execute("SET enable_progress_bar = false")
        database.execute("DETACH DATABASE IF EXISTS ledger")
        ((memory,),) = database.execute(_MEMORY).fetchall()
        if memory < _IDLE_BYTES and len(_idle) < _IDLE_AT_MOST:
            _idle.append(database)


def _leave_open(database: duckdb.DuckDBPyConnection) -> None:
    """Never close a database that a parent process opened: that ends this one by SIGSEGV."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))


def _forked() -> None:
    for database in _idle:
        _leave_open(database)
    _idle.clear()


os.register_at_fork(after_in_child=_forked)
