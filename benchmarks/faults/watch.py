"""What the page of the lent device says while faults happen: leases as they change, and rollout work as it was done."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span, SpanRecord

#: Between two looks at the lease; how exactly its end is known.
LOOK_S = 0.005
_LOOKS_PER_DRAIN = 10


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """From `at_ns` on the page had this lease, to expire at `expires_ns` (both monotonic); number 0: none."""

    at_ns: int
    number: int
    expires_ns: int


class PageWatch:
    """Reads a page that is not ours, and writes nothing to it. One thread, from `start` to `stop`."""

    def __init__(self, page: ArbiterPage) -> None:
        self._page = page
        self._tail = page.get(Party.ROLLOUT, Field.HEAD)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="page watch", daemon=True)
        self.leases: list[LeaseSeen] = [LeaseSeen(0, 0, 0)]
        #: Rollout work alone, in the order in which it ended.
        self.work: list[SpanRecord] = []
        self.lost_spans = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look no more. Safe to call twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def lease(self, now_ns: int) -> LeaseSeen | None:
        """The lease in force, as last seen."""
        last = self.leases[-1]
        return last if last.number and last.expires_ns > now_ns else None

    def works_since(self, since_ns: int) -> int | None:
        """When the first rollout work began that began at or after `since_ns`, if any did."""
        starts = [span.start_ns for span in self.work[-2000:] if span.start_ns >= since_ns]
        kind = self._page.open(Party.ROLLOUT, monotonic_ns())
        if kind is not None and kind.kind is Span.ROLLOUT and kind.start_ns >= since_ns:
            starts.append(kind.start_ns)
        return min(starts, default=None)

    def _loop(self) -> None:
        looks = 0
        while not self._stopping.wait(LOOK_S):
            terms = self._page.lease()
            last = self.leases[-1]
            if (terms.number, terms.expires_ns) != (last.number, last.expires_ns):
                self.leases.append(LeaseSeen(monotonic_ns(), terms.number, terms.expires_ns))
            looks += 1
            if looks % _LOOKS_PER_DRAIN == 0:
                spans, self._tail, lost = self._page.drain(Party.ROLLOUT, self._tail)
                self.work += [span for span in spans if span.kind is Span.ROLLOUT]
                self.lost_spans += lost


def lease_end_ns(leases: Sequence[LeaseSeen], number: int) -> int | None:
    """When the lease was over for the device: withdrawn from the page, or expired on it. None if it is not yet."""
    last = next((i for i in range(len(leases) - 1, -1, -1) if leases[i].number == number), None)
    if last is None:
        return None
    expires_ns = leases[last].expires_ns
    if last + 1 < len(leases):
        return min(expires_ns, leases[last + 1].at_ns)
    return expires_ns if expires_ns <= monotonic_ns() else None


def back_ns(work: Sequence[SpanRecord], begin_ns: int, end_ns: int, next_ns: int) -> int:
    """When rollouts that a lease let in were off the device: no earlier than its end, and with its last step.

    The lease was in force in [begin_ns, end_ns), and the next one from `next_ns` on.
    """
    last = max((span.end_ns for span in work if begin_ns <= span.start_ns < next_ns), default=0)
    return max(end_ns, last)


def overrun_ns(work: Sequence[SpanRecord], begin_ns: int, end_ns: int, next_ns: int) -> int:
    """How long after the end of a lease rollout work last began that no lease let in; 0: none did."""
    return max((span.start_ns - end_ns for span in work if end_ns < span.start_ns < next_ns), default=0)
