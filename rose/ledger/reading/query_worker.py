"""Runs each query of a user in its own process. The kernel denies this process all writes to files, and limits its time
and memory: DuckDB alone cannot interrupt a function call on one huge value."""

import json
import os
import resource
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from rose.ledger.files import catalog, layout, rolled
from rose.ledger.files.layout import LedgerError
from rose.ledger.reading import query_check
from rose.ledger.reading.query import KILL_AFTER_S, QueryError, Request, arrow_stream, too_large, too_slow

RESULT_BYTES_MAX = 256 * 1024**2  # A larger result is refused, since it must fit the caller's memory.
_MEMORY_SLACK_BYTES = 512 * 1024**2  # Memory beyond the query's limit: stacks, and DuckDB's uncounted memory.
_THREADS_MAX = 4
_CONNECT_S = 60.0
_BATCH_ROWS = 10_000


def serve(control: socket.socket) -> None:
    """Fork a process for each socket that arrives over `control`, until the other end is closed.

    The new process reads a Request, and answers with a line of JSON (`types`, `truncated` and `bytes`, or `error` and
    `outcome`) and an Arrow IPC stream. If a signal ends the new process, this one answers `died` with its number."""
    running: dict[int, socket.socket] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _reap(running))
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        connection = socket.socket(fileno=descriptors[0])
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # The child may end before `running` has it.
        if (pid := os.fork()) == 0:
            for other in (control, *running.values()):
                other.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            _answer(connection)
        running[pid] = connection
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _reap(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue  # Another process ended meanwhile, and its handler was first.
        if ended:
            with running.pop(pid) as connection, suppress(OSError):
                if os.WIFSIGNALED(status):
                    connection.setblocking(False)
                    connection.sendall(json.dumps({"died": os.WTERMSIG(status)}).encode() + b"\n")


def _answer(connection: socket.socket) -> None:
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        with connection.makefile("rb") as stream:
            request = Request(**json.loads(stream.read()))
        signal.setitimer(signal.ITIMER_REAL, request.timeout_s + _CONNECT_S)
        threading.Thread(target=_end_with, args=[connection], daemon=True).start()
        try:
            header, content = _run(request)
        except LedgerError as error:
            header, content = {"error": str(error), "outcome": getattr(error, "outcome", None)}, b""
        except Exception as error:
            header, content = {"error": f"the query failed: {type(error).__name__}: {error}", "outcome": None}, b""
            # Arrow reports DuckDB's lack of memory as an OSError.
            if isinstance(error, MemoryError) or "Out of Memory" in str(error):
                header = {"error": too_large(request.memory_limit_gb), "outcome": "failed"}
        connection.sendall(json.dumps({**header, "bytes": len(content)}).encode() + b"\n")
        connection.sendall(content)
    finally:
        os._exit(0)


def _end_with(connection: socket.socket) -> None:
    hung_up = select.poll()
    hung_up.register(connection, 0)
    hung_up.poll()
    os._exit(0)


def _damaged(root: Path, message: str) -> str:
    return layout.unreadable(message) if f"{root}/" in message else message


def _run(request: Request) -> tuple[dict[str, Any], bytes]:
    root = layout.check(request.root)
    with catalog.connect(root) as connection:
        _limit(request)
        try:
            _lock_down(connection, root, request)
            relation = connection.sql(query_check.limited(connection, request.text, request.limit + 1))
            types = [str(kind) for kind in relation.types]
            table = _fetch(relation.to_arrow_reader(_BATCH_ROWS))
        except duckdb.InterruptException as error:
            raise QueryError(too_slow(request.timeout_s), "timeout") from error
        except duckdb.Error as error:
            raise QueryError(_damaged(root, query_check.explained(str(error)))) from error
        except (MemoryError, pa.ArrowMemoryError) as error:
            raise QueryError(too_large(request.memory_limit_gb)) from error
        except pa.ArrowException as error:
            if "INTERRUPT" in str(error):
                raise QueryError(too_slow(request.timeout_s), "timeout") from error
            raise QueryError(_damaged(root, str(error))) from error
    truncated = table.num_rows > request.limit
    return {"types": types, "truncated": truncated}, arrow_stream(table.slice(0, request.limit))


def _fetch(reader: pa.RecordBatchReader) -> pa.Table:
    batches, size_bytes = [], 0
    for batch in reader:
        batches.append(batch)
        size_bytes += batch.nbytes
        if size_bytes > RESULT_BYTES_MAX:
            raise QueryError(f"the result exceeds {RESULT_BYTES_MAX // 1024**2} MiB; select fewer columns or rows")
    return pa.Table.from_batches(batches, reader.schema)


def _limit(request: Request) -> None:
    signal.setitimer(signal.ITIMER_REAL, request.timeout_s + KILL_AFTER_S)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    memory_bytes = pages * resource.getpagesize() + int(request.memory_limit_gb * 1e9) + _MEMORY_SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 2)


def _lock_down(connection: duckdb.DuckDBPyConnection, root: Path, request: Request) -> None:
    folders = ", ".join(catalog.quoted(f"{root}/{folder}/") for folder in ("live", "compacted", rolled.FOLDER))
    connection.execute(f"SET allowed_directories = [{folders}]")
    connection.execute("SET allowed_paths = []")
    connection.execute(f"SET threads = {min(_THREADS_MAX, len(os.sched_getaffinity(0)))}")
    connection.execute(f"SET memory_limit = '{request.memory_limit_gb}GB'")
    connection.execute(f"SET max_execution_time = {max(1, round(request.timeout_s * 1000))}")
    connection.execute(f"SET arrow_lossless_conversion = {str(request.lossless).lower()}")
    connection.execute("SET temp_directory = ''")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
