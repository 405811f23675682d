"""The access log of a gateway: an event for each read, on disk before the answer goes out; refusals are counted.

No read goes unlogged: while the disk refuses the event, the read is refused. Refusals give nothing away, so they are
only counted, and a thread writes them: at most one event a second for a peer, whatever it sends.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rose.events import Access
from rose.ledger.layout import LedgerError
from rose.ledger.writer import LedgerWriter

#: Refusals of one peer become one event in this time.
DENIALS_S = 1.0
#: So do looks at how far writers are, after the first.
LOOKS_S = 60.0
#: Counted at a time; what more peers do is counted together.
_COUNTED_MAX = 1024
OTHER_PEERS = "(other peers)"


@dataclasses.dataclass(slots=True)
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
