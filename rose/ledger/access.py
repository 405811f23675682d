"""The access log: events about reads of a ledger. If `logged` cannot write an event, it warns on stderr."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger

if TYPE_CHECKING:
    from rose.events import Access
    from rose.ledger.writer import LedgerWriter

WRITER = "access"
VARIABLE = "ROSE_LOG_ACCESS"  # `exports`: log exports, reports and verifications.
STATEMENT_CHARACTERS = 1000
COUNTED_S = 1.0  # Refusals of one peer, and its questions about writers, become one event in this time.
_COUNTED_MAX = 1024
OTHER_PEERS = "(other peers)"


@contextmanager
def logged(
    ledger: Ledger, action: Literal["export", "verify", "report", "receipt"], text: str, *, who: str | None = None
) -> Iterator[None]:
    """If the environment has ROSE_LOG_ACCESS=exports, log the `with` block as a read by `who` (None: this user)."""
    began_ns, outcome = time.monotonic_ns(), "ok"
    try:
        yield
    except Exception as error:
        outcome = getattr(error, "outcome", "failed")
        raise
    finally:
        if os.environ.get(VARIABLE) == "exports":
            took_ns = time.monotonic_ns() - began_ns
            _write(ledger, {"action": action, "outcome": outcome, "duration_ns": took_ns, **statement(text)}, who)


def statement(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    # JSON may contain half of a surrogate pair, which cannot be stored.
    content = text.encode(errors="backslashreplace")
    kept = text[:STATEMENT_CHARACTERS].encode(errors="backslashreplace").decode()
    return {"statement": kept, "statement_sha256": hashlib.sha256(content).hexdigest()}


def _write(ledger: Ledger, fields: dict[str, Any], who: str | None) -> None:
    # These load Arrow.
    from rose.events import Access
    from rose.ledger import verified
    from rose.ledger.writer import LedgerWriter
    from rose.terminal import echo

    try:
        # Another command may hold the writer. No writer's name begins with a dot.
        with ledger.lock("access"), LedgerWriter.open(ledger.folder, WRITER, layout.UPKEEP_RUN_ID) as writer:
            writer.record(Access(who=who or verified.user_at_host(), **fields))
    except (LedgerError, OSError) as error:
        echo(f"this read is not in the ledger's access log: {error}", err=True)


class AccessLog:
    """Counts similar Access events, and writes one event per count. Thread-safe. `writer` returns a LedgerWriter."""

    def __init__(self, writer: Callable[[], LedgerWriter]) -> None:
        self._writer = writer
        self._mutex = threading.Lock()
        self._counts: dict[tuple[str, str | None, str], tuple[Access, int]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def count(self, event: Access) -> None:
        """Count `event`. Every COUNTED_S seconds, one event with the count is written for each reader, host and action.
        The counts are kept while the ledger's writer has an error."""
        host = event.peer and (event.peer.rpartition(":")[0] or event.peer)
        key = (event.who, host, event.action)
        with self._mutex:
            if key not in self._counts and len(self._counts) >= _COUNTED_MAX:
                event = dataclasses.replace(event, peer=OTHER_PEERS)
                key = (event.who, OTHER_PEERS, event.action)
            first, count = self._counts.get(key, (event, 0))
            self._counts[key] = first, count + 1

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(COUNTED_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with suppress(LedgerError):
            if not self._counts or (writer := self._writer()).failure is not None:
                return
            with self._mutex:
                counted = list(self._counts.values())
                self._counts.clear()
            for event, count in counted:
                with suppress(LedgerError):
                    writer.record(dataclasses.replace(event, count=count), durable=False)
            writer.flush()
