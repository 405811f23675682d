"""The access log: an event for each read of a ledger, by commands on its folder and by a gateway.

`logged` records what `rose` commands and the dashboard's SQL page read, where ROSE_LOG_ACCESS asks. Whoever may read a
folder may read its files without any log, so an event that cannot be written is reported and stops nobody.

`AccessLog` is a gateway's. The event is on disk before the answer goes out: while the disk refuses it, the read is
refused. Refusals are counted, and a thread writes them: at most one event a second for a peer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rose.events import Access
from rose.ledger import layout
from rose.ledger.layout import LedgerError

if TYPE_CHECKING:
    from rose.ledger.writer import LedgerWriter

WRITER = "access"
#: `exports`: exports, reports and verifications are logged; `queries`: queries too; anything else: nothing.
VARIABLE = "ROSE_LOG_ACCESS"
#: Characters of a statement that are kept; its hash is of all of them.
STATEMENT_CHARACTERS = 1000
#: Refusals of one peer become one event in this time.
DENIALS_S = 1.0
#: So do looks at how far writers are, after the first.
LOOKS_S = 60.0
#: Counted at a time; what more peers do is counted together.
_COUNTED_MAX = 1024
OTHER_PEERS = "(other peers)"


@dataclass(slots=True)
class Reading:
    """What somebody is given; whoever gives it fills in how many rows."""

    rows: int | None = None


@contextmanager
def logged(
    root: Path | str,
    action: Literal["query", "export", "verify", "report", "receipt"],
    asked: str,
    *,
    who: str | None = None,
) -> Iterator[Reading]:
    """The block reads the ledger at `root`; once it is done there is an event of it, if VARIABLE asks for one.

    `who` reads it; this user at this host if it is None.
    """
    reading, began_ns = Reading(), time.monotonic_ns()
    outcome: Literal["ok", "refused", "failed", "timeout"] = "ok"
    try:
        yield reading
    except Exception as error:
        outcome = getattr(error, "outcome", "failed")
        raise
    finally:
        took: dict[str, Any] = {"result_rows": reading.rows, "duration_ns": time.monotonic_ns() - began_ns}
        _write(root, action, {"outcome": outcome, **took, **statement(asked)}, who)


def statement(text: str | None) -> dict[str, Any]:
    """The fields of an Access that say what was asked for."""
    if text is None:
        return {}
    # Half of a surrogate pair, which JSON can bring, is no text that could be stored.
    content = text.encode(errors="backslashreplace")
    kept = text[:STATEMENT_CHARACTERS].encode(errors="backslashreplace").decode()
    return {"statement": kept, "statement_sha256": hashlib.sha256(content).hexdigest()}


def _write(
    root: Path | str,
    action: Literal["query", "export", "verify", "report", "receipt"],
    fields: dict[str, Any],
    who: str | None,
) -> None:
    try:
        root = layout.check(root)
    except LedgerError:
        # There is nothing to log in, and whoever read it was told so.
        return
    try:
        if os.environ.get(VARIABLE) not in (("queries",) if action == "query" else ("exports", "queries")):
            return
        # Only now: they load Arrow, which a query does while its worker starts.
        from rose.ledger import verified
        from rose.ledger.writer import LedgerWriter

        # Another command may be writing its own. No writer's name begins with a dot.
        with (
            layout.locked(root / "locks" / ".access.lock"),
            LedgerWriter.open(root, WRITER, layout.UPKEEP_RUN_ID) as writer,
        ):
            writer.record(Access(who=who or verified.user_at_host(), action=action, **fields))
    except (LedgerError, OSError) as error:
        from rose.terminal import echo

        echo(f"this is not in the ledger's access log: {error}", err=True)


@dataclass(slots=True)
class _Count:
    event: Access
    count: int
    due_s: float


class AccessLog:
    """Writes Access events through the writer that `writer` opens. Threads may share it; `close` it at the end."""

    def __init__(self, writer: Callable[[], LedgerWriter]) -> None:
        self._writer = writer
        self._mutex = threading.Lock()
        self._counts: dict[tuple[str, str | None, str], _Count] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises LedgerError while the disk refuses events, so that nothing is read that could not be logged."""
        if (failure := self._writer().failure) is not None:
            raise LedgerError(failure)

    def write(self, event: Access) -> None:
        """Bring `event` to disk. Raises LedgerError: then what it is about must not be given."""
        self._writer().record(event)

    def write_or_count(self, event: Access) -> None:
        """Bring `event` to disk, or count it if the same was written within LOOKS_S. Raises LedgerError."""
        if not self._add(event, LOOKS_S, count=0):
            try:
                self.write(event)
            except LedgerError:
                with self._mutex:
                    known = self._counts.get(_key(event))
                    # What others looked at meanwhile was given to them, and stays counted.
                    if known is not None and not known.count:
                        del self._counts[_key(event)]
                raise

    def count(self, event: Access) -> None:
        """Count a refusal; it is written within DENIALS_S or, while the disk refuses, once it does not."""
        self._add(event, DENIALS_S, count=1)

    def close(self) -> None:
        """Write what was counted, and end."""
        self._closing.set()
        self._thread.join()
        self._flush(float("inf"))

    def _add(self, event: Access, every_s: float, count: int) -> bool:
        """Whether the same was counted already; if not, it now is, from `count` on."""
        with self._mutex:
            if _key(event) not in self._counts and len(self._counts) >= _COUNTED_MAX:
                event = dataclasses.replace(event, peer=OTHER_PEERS)
            known = self._counts.get(_key(event))
            if known is None:
                self._counts[_key(event)] = _Count(event, count, time.monotonic() + every_s)
            else:
                known.count += 1
            return known is not None

    def _run(self) -> None:
        while not self._closing.wait(DENIALS_S / 4):
            self._flush(time.monotonic())

    def _flush(self, now_s: float) -> None:
        """Write what is due. While the disk refuses it stays counted."""
        with self._mutex:
            wanted = any(counted.count and counted.due_s <= now_s for counted in self._counts.values())
        with suppress(LedgerError):
            # Not under the lock, which every call waits for.
            writer = self._writer() if wanted else None
            if writer is not None and writer.failure is not None:
                return
            for counted in self._taken(now_s, empty=writer is None):
                if writer is not None and counted.count:
                    # From here on it is the writer's to keep, also where it raises since the disk refuses it now.
                    with suppress(LedgerError):
                        writer.record(dataclasses.replace(counted.event, count=counted.count), durable=False)
            if writer is not None:
                writer.flush()

    def _taken(self, now_s: float, *, empty: bool) -> list[_Count]:
        """What is due, no longer counted here; with `empty` only what counts nothing yet."""
        with self._mutex:
            due = [
                key for key, counted in self._counts.items() if counted.due_s <= now_s and not (empty and counted.count)
            ]
            return [self._counts.pop(key) for key in due]


def _key(event: Access) -> tuple[str, str | None, str]:
    return event.who, _host(event.peer), event.action


def _host(peer: str | None) -> str | None:
    """The peer without its port, which is another one for each connection."""
    return None if peer is None else peer.rpartition(":")[0] or peer
