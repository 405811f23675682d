"""Serves a ledger to other hosts. The scopes of a request's token decide what the request may do."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from rose.events import Access
from rose.ledger.access import AccessLog, statement
from rose.ledger.files import catalog, layout, spool
from rose.ledger.files.layout import LedgerError
from rose.ledger.hosts.receive import ChainEnd, Receiver
from rose.ledger.ledger import Ledger
from rose.ledger.reading.query import query_arrow
from rose.ledger.upkeep.metrics import LedgerCollector
from rose.ledger.writer import LedgerWriter
from rose.tokens import Token, UnknownTokenError

UNKNOWN_TOKEN = "(unknown token)"  # The access log's name for the sender of an unknown token.


class DeniedError(LedgerError):
    """A token lacks the scope that its request needs."""


class BusyError(LedgerError):
    exit_code: ClassVar[int] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    rows: int = 1_000_000
    timeout_s: float = 60.0
    memory_gb: float = 2.0
    queries: int = 2
    wait_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Caller:
    token: Token
    peer: str


class LedgerService:
    """Serves `ledger` to any number of threads. `find` returns a secret's token, or raises UnknownTokenError."""

    def __init__(self, ledger: Ledger, find: Callable[[str], Token], limits: Limits | None = None) -> None:
        self._ledger = ledger
        catalog.refresh_sound(ledger.folder)
        self._find, self._limits = find, limits or Limits()
        self._receiver = Receiver(ledger)
        self._turns = threading.BoundedSemaphore(self._limits.queries)
        self._mutex = threading.Lock()
        self._writer: LedgerWriter | None = None
        self._metrics = LedgerCollector(ledger)
        self._log = AccessLog(self._own_writer)

    def close(self) -> None:
        self._log.close()
        self._receiver.close()
        if self._writer is not None:
            self._writer.close()

    def caller(self, secret: str, peer: str) -> Caller:
        try:
            return Caller(self._find(secret), peer)
        except UnknownTokenError as error:
            self._log.count(Access(who=error.who or UNKNOWN_TOKEN, peer=peer, action="token_denied", outcome="refused"))
            raise

    def ends(self, caller: Caller, writers: Sequence[str] | None) -> dict[str, Any]:
        """Return the ends of these writers' chains (None: all). A token may always ask for its own writers."""
        token = caller.token
        if token.writers and not token.may("read"):
            writers = layout.writers(self._ledger.folder) if writers is None else writers
            writers = [writer for writer in writers if token.owns(writer)]
        if writers is not None and all(map(token.owns, writers)):
            ends = self._receiver.ends(writers)
        else:
            with self._reading(caller, "info"):
                ends = self._receiver.ends(writers)
        return {"format": layout.FORMAT_VERSION, "writers": {writer: asdict(ends[writer]) for writer in ends}}

    def receive(self, caller: Caller, path: str, content: bytes) -> ChainEnd:
        if path.count("/") == 3 and not caller.token.may_append(writer := path.split("/")[1]):
            raise self._denied(caller, "append", f"append as {writer!r}")
        return self._receiver.receive(path, content)

    def query(self, caller: Caller, sql: str, limit: int, timeout_s: float, *, lossless: bool) -> tuple[pa.Table, bool]:
        caps = self._limits
        with self._reading(caller, "query", sql) as facts:
            if not self._turns.acquire(timeout=caps.wait_s):
                raise BusyError(f"{caps.queries} queries are running; try again later")
            try:
                table, truncated = query_arrow(
                    self._ledger,
                    sql,
                    limit=min(limit, caps.rows),
                    timeout_s=min(timeout_s, caps.timeout_s),
                    memory_limit_gb=caps.memory_gb,
                    lossless=lossless,
                )
            finally:
                self._turns.release()
            facts["result_rows"] = table.num_rows
        return table, truncated

    def metrics(self, caller: Caller) -> str:
        with self._reading(caller, "info"):
            return self._metrics.text()

    @contextmanager
    def _reading(
        self, caller: Caller, action: Literal["query", "info"], text: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Log the `with` block as a read. The block may add facts to the log's event."""
        if not caller.token.may("read"):
            raise self._denied(caller, "read", "read", text)
        if (failure := self._own_writer().failure) is not None:
            raise LedgerError(failure)
        facts, began_ns = statement(text), time.monotonic_ns()

        def entry(outcome: Literal["ok", "refused", "failed", "timeout"]) -> Access:
            facts["duration_ns"] = time.monotonic_ns() - began_ns
            return Access(who=caller.token.name, peer=caller.peer, action=action, outcome=outcome, **facts)

        try:
            yield facts
        except BusyError:
            self._log.count(entry("refused"))  # Nothing was read, and repeated attempts must not fill the disk.
            raise
        except Exception as error:
            self._own_writer().record(entry(getattr(error, "outcome", "failed")))
            raise
        if action == "info":
            self._log.count(entry("ok"))
        else:
            self._own_writer().record(entry("ok"))  # If this fails, the caller gets no answer.

    def _denied(
        self, caller: Caller, scope: Literal["read", "append"], act: str, text: str | None = None
    ) -> DeniedError:
        denial: Any = f"{scope}_denied"
        who, peer = caller.token.name, caller.peer
        self._log.count(Access(who=who, peer=peer, action=denial, outcome="refused", **statement(text)))
        return DeniedError(
            f"token {caller.token.name!r} may not {act}: it has {caller.token.described or 'no scope'}. "
            f"`rose token create` makes one with the scope {scope!r}"
        )

    def _own_writer(self) -> LedgerWriter:
        with self._mutex:
            if self._writer is None:
                self._writer = LedgerWriter.open(self._ledger.folder, spool.GATEWAY_WRITER, spool.GATEWAY_WRITER)
            return self._writer
