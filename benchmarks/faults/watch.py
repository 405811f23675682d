"""What the page of a lent device says while faults happen: leases as they change, and rollout work as it was done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, PageError, Party, Span, SpanRecord

#: Between two looks at the lease; how exactly its end is known.
LOOK_S = 0.005
_LOOKS_PER_DRAIN = 10
PAGE = 1_000_000


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """At `at_ns` the page had this lease, to expire at `expires_ns`; at `without_ns` it did not yet. All monotonic;
    number 0: none.

    Leases of a page that was made anew, as on a host that was started again, are numbered from the next `PAGE` on.
    """

    at_ns: int
    number: int
    expires_ns: int
    without_ns: int


class PageWatch:
    """Reads a device's page, whoever makes it anew, and writes nothing to it. One thread, from `start` to `stop`.

    `place` gives where the page lies, and what its host's clock has more than ours. Times are ours.
    """

    def __init__(self, place: Callable[[], tuple[Path, int]]) -> None:
        self._place = place
        self._page: ArbiterPage | None = None
        self._ahead_ns = self._tail = self._pages = 0
        #: When it was last looked for another page, and for another lease.
        self._found_ns = self._looked_ns = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="page watch", daemon=True)
        self.leases: list[LeaseSeen] = [LeaseSeen(0, 0, 0, 0)]
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

    @property
    def page(self) -> ArbiterPage | None:
        """The page that is there."""
        return self._page

    def lease(self, now_ns: int) -> LeaseSeen | None:
        """The lease in force, as last seen."""
        last = self.leases[-1]
        return last if last.number and last.expires_ns > now_ns else None

    def works_since(self, since_ns: int) -> int | None:
        """When the first rollout work began that began at or after `since_ns`, if any did."""
        starts = [span.start_ns for span in self.work[-2000:] if span.start_ns >= since_ns]
        return min(starts, default=None)

    def _loop(self) -> None:
        looks = 0
        while not self._stopping.wait(LOOK_S):
            looks += 1
            if looks % _LOOKS_PER_DRAIN == 0 or self._page is None:
                self._find()
            page, looked_ns = self._page, monotonic_ns()
            if page is None:
                self._see(0, 0, looked_ns)
                continue
            terms = page.lease()
            self._see(terms.number, terms.expires_ns - self._ahead_ns, looked_ns)
            if looks % _LOOKS_PER_DRAIN == 0:
                spans, self._tail, lost = page.drain(Party.ROLLOUT, self._tail)
                self.work += [
                    SpanRecord(span.kind, span.start_ns - self._ahead_ns, span.end_ns - self._ahead_ns)
                    for span in spans
                    if span.kind is Span.ROLLOUT
                ]
                self.lost_spans += lost

    def _see(self, number: int, expires_ns: int, looked_ns: int) -> None:
        last = self.leases[-1]
        number, expires_ns = (number + self._pages * PAGE, expires_ns) if number else (0, 0)
        if (number, expires_ns) != (last.number, last.expires_ns):
            self.leases.append(LeaseSeen(monotonic_ns(), number, expires_ns, self._looked_ns))
        self._looked_ns = looked_ns

    def _find(self) -> None:
        """Have the page that lies there now."""
        before_ns, self._found_ns = self._found_ns, monotonic_ns()
        path, ahead_ns = self._place()
        if self._page is not None and (self._page.path != path or self._page.replaced()):
            self._page.close()
            self._page = None
            self._pages += 1
            # The next one may lie there since.
            self._looked_ns = before_ns
        if self._page is None:
            with suppress(OSError, PageError, ValueError):
                page = ArbiterPage(path)
                self._ahead_ns, self._tail = ahead_ns, page.get(Party.ROLLOUT, Field.HEAD)
                self._page = page


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

    The lease was in force in [begin_ns, end_ns), and the next one not before `next_ns`.
    """
    last = max((span.end_ns for span in work if begin_ns <= span.start_ns < next_ns), default=0)
    return max(end_ns, last)


def overrun_ns(work: Sequence[SpanRecord], begin_ns: int, end_ns: int, next_ns: int) -> int:
    """How long after the end of a lease rollout work last began that no lease let in; 0: none did."""
    return max((span.start_ns - end_ns for span in work if end_ns < span.start_ns < next_ns), default=0)
