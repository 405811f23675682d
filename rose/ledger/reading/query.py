"""Runs users' SQL: one SELECT with limits on time and memory, in its own process (`query_worker`).

This module imports DuckDB and Arrow only after the query was sent to that process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger

if TYPE_CHECKING:
    import pyarrow as pa

Outcome = Literal["refused", "failed", "timeout"]
KILL_AFTER_S = 0.5  # Seconds after its timeout at which a running query is killed.
_GRACE_S = 120.0  # Further seconds to wait for an answer: the first call loads DuckDB, and a result takes time to send.
_SECRETS = ("ROSE_TOKEN",)  # Environment variables that a process with users' SQL must not have.


class QueryError(LedgerError):
    """The query was `refused` before it ran, it `failed`, or it reached its `timeout`."""

    def __init__(self, text: str, outcome: Outcome = "failed") -> None:
        super().__init__(text)
        self.outcome: Outcome = outcome


@dataclass(frozen=True, slots=True)
class Result:
    columns: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Request:
    """A query for a worker. `lossless`: values without an Arrow type are sent so that DuckDB can restore them."""

    root: str
    text: str
    limit: int
    timeout_s: float
    memory_limit_gb: float
    lossless: bool = False


def query(
    ledger: Ledger, text: str, *, limit: int = 10_000, timeout_s: float = 30.0, memory_limit_gb: float = 2.0
) -> Result:
    """Run one SELECT and return its result. Raises QueryError, also for reads outside the ledger or a timeout."""
    table, truncated = query_arrow(
        ledger, text, limit=limit, timeout_s=timeout_s, memory_limit_gb=memory_limit_gb, lossless=True
    )
    return result(table, truncated)


def result(table: pa.Table, truncated: bool) -> Result:
    """Return the rows of a lossless table as Python values. Times are UTC, without a zone."""
    return Result(table.column_names, _python_rows(table), truncated)


def query_arrow(
    ledger: Ledger, text: str, *, limit: int, timeout_s: float, memory_limit_gb: float, lossless: bool
) -> tuple[pa.Table, bool]:
    """Run a query as `query` does. Return an Arrow table, with DuckDB's types as metadata, and whether rows were cut.

    Without `lossless`, HUGEINT becomes DECIMAL(38, 0) and UUID becomes text."""
    if not (limit >= 0 and 0 < timeout_s < 1e6 and 0 < memory_limit_gb < 1e6):
        given = f"limit {limit}, timeout {timeout_s} s, memory {memory_limit_gb} GB"
        raise QueryError(f"{given}: the limit must be at least 0, the others above 0 and below 1e6")
    began = time.monotonic()
    with _workers.connection() as connection:
        connection.settimeout(timeout_s + KILL_AFTER_S + _GRACE_S)
        request = Request(str(ledger.folder), text, limit, timeout_s, memory_limit_gb, lossless)
        try:
            connection.sendall(json.dumps(asdict(request)).encode())
            connection.shutdown(socket.SHUT_WR)
            import pyarrow as pa

            with connection.makefile("rb") as stream:
                header = json.loads(stream.readline() or "{}")
                content = stream.read()
        except TimeoutError as error:
            raise QueryError(f"no answer to the query within {timeout_s + KILL_AFTER_S + _GRACE_S:g} s") from error
        except OSError:
            header, content = {}, b""
    if "error" in header:
        raise QueryError(header["error"], outcome) if (outcome := header["outcome"]) else LedgerError(header["error"])
    if len(content) != header.get("bytes"):
        if time.monotonic() - began >= timeout_s:
            raise QueryError(too_slow(timeout_s), "timeout")
        raise QueryError(_died(header.get("died"), memory_limit_gb))
    table = pa.ipc.open_stream(content).read_all()
    types = zip(table.schema, header["types"], strict=True)
    schema = pa.schema([field.with_metadata({"type": kind}) for field, kind in types])
    return pa.Table.from_arrays(table.columns, schema=schema), header["truncated"]


def arrow_stream(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _python_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    import pyarrow as pa

    from rose.ledger.files import database

    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            table = table.set_column(index, field.name, table.column(index).cast(pa.timestamp(field.type.unit)))
    if not table.num_columns:
        return []
    # By position, since names may differ only in case.
    table = table.rename_columns([f"c{index}" for index in range(table.num_columns)])
    with database.empty() as connection:
        return connection.from_arrow(table).fetchall()


def too_slow(timeout_s: float) -> str:
    return f"the query took longer than {timeout_s:g} s; narrow it, or raise the timeout"


def too_large(memory_limit_gb: float) -> str:
    return f"Out of Memory: the query needed more than {memory_limit_gb:g} GB; narrow it"


def _died(number: int | None, memory_limit_gb: float) -> str:
    if number == signal.SIGABRT:
        # A C library without memory aborts; DuckDB's own failures are errors.
        return too_large(memory_limit_gb)
    if number is None:
        return "the process of the query ended without an answer; try again"
    name = signal.Signals(number).name
    if number == signal.SIGKILL:
        return f"the query was killed ({name}), by someone or because this host ran out of memory; try again"
    return f"DuckDB crashed on the query ({name}), perhaps for lack of memory; write it in another way, or narrow it"


class _Workers:
    """The helper process that forks a worker for each query. It lives from the first query until this process ends."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def connection(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with self._mutex, theirs:
            try:
                self._send(theirs)
            except OSError:
                self._control = None
                self._send(theirs)
        return ours

    def _send(self, theirs: socket.socket) -> None:
        if self._control is None:
            self._control = self._start()
        socket.send_fds(self._control, [b"q"], [theirs.fileno()])

    def _start(self) -> socket.socket:
        # A packet for each query, so that two processes with this socket after a fork cannot mix their queries.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        # One arena, and as few threads as possible before the fork.
        environment |= {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        with theirs:
            # -P: no imports from the working directory. A session of its own: Ctrl-C is for the caller.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rose.ledger.reading.query_worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        return ours


_workers = _Workers()
