"""Watches a lent device's page during faults."""

import bisect
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, PageError, Party, Span, SpanRecord

LOOK_S = 0.005  #: Time between two looks at the lease, and the precision of its end.
_LOOKS_PER_DRAIN = 10
_LOOKS_APART_NS = 1_000_000_000  #: Processor times further apart than this say nothing about the time between them.
PAGE = 1_000_000


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A lease that the page had at `at_ns`, and not yet at `without_ns`; number 0: no lease. Leases of a new page are
    numbered from the next multiple of `PAGE` on."""

    at_ns: int
    number: int
    expires_ns: int
    without_ns: int


@dataclass(frozen=True, slots=True)
class Ran:
    at_ns: int
    cpu_ns: int


class PageWatch:
    """Reads a device's page, and each page that replaces it, in a thread. `place` returns the page's path and the lead
    of its host's clock, ns; `process` returns a numbered process there. Times are of this machine's clock."""

    def __init__(
        self, place: Callable[[], tuple[Path, int]], process: Callable[[int], psutil.Process | None] = lambda _: None
    ) -> None:
        self._place, self._process = place, process
        #: The rollout engine's number, its process, and its processor time at the last look.
        self._engine: tuple[int, psutil.Process | None, int] = (0, None, 0)
        self._sought_ns = 0
        self._page: ArbiterPage | None = None
        self._ahead_ns = self._tail = self._pages = 0
        self._found_ns = self._looked_ns = 0  #: When the page and the lease were last looked for.
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="page watch", daemon=True)
        self.leases: list[LeaseSeen] = [LeaseSeen(0, 0, 0, 0)]
        self.work: list[SpanRecord] = []  #: Rollout spans by end.
        self.ran: list[Ran] = [Ran(0, 0)]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def page(self) -> ArbiterPage | None:
        return self._page

    def lease(self, now_ns: int) -> LeaseSeen | None:
        last = self.leases[-1]
        return last if last.number and last.expires_ns > now_ns else None

    def works_since(self, since_ns: int) -> int | None:
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
                spans, self._tail, _ = page.drain(Party.ROLLOUT, self._tail)
                self.work += [
                    SpanRecord(span.kind, span.start_ns - self._ahead_ns, span.end_ns - self._ahead_ns)
                    for span in spans
                    if span.kind in (Span.ROLLOUT, Span.BESIDE)
                ]
                self._see_ran(page)

    def _see(self, number: int, expires_ns: int, looked_ns: int) -> None:
        last = self.leases[-1]
        number, expires_ns = (number + self._pages * PAGE, expires_ns) if number else (0, 0)
        if (number, expires_ns) != (last.number, last.expires_ns):
            self.leases.append(LeaseSeen(monotonic_ns(), number, expires_ns, self._looked_ns))
        self._looked_ns = looked_ns

    def _see_ran(self, page: ArbiterPage) -> None:
        now_ns, number = monotonic_ns(), page.get(Party.ROLLOUT, Field.PID)
        before, process, before_ns = self._engine
        if process is None or number != before:
            if not number or now_ns - self._sought_ns < _LOOKS_APART_NS:
                return
            self._sought_ns, process = now_ns, self._process(number)
            if process is None:
                return
        try:
            times = process.cpu_times()
        except psutil.Error:
            self._engine = (0, None, 0)
            return
        cpu_ns = int((times.user + times.system) * 1e9)
        more_ns = cpu_ns - before_ns if number == before else 0  # Time before an engine was first seen does not count.
        self.ran.append(Ran(now_ns, self.ran[-1].cpu_ns + more_ns))
        self._engine = (number, process, cpu_ns)

    def _find(self) -> None:
        before_ns, self._found_ns = self._found_ns, monotonic_ns()
        try:
            path, ahead_ns = self._place()
        except FileNotFoundError:  # The host is down.
            path, ahead_ns = None, 0
        if self._page is not None and (self._page.path != path or self._page.replaced()):
            self._page.close()
            self._page = None
            self._pages += 1
            self._looked_ns = before_ns  # The new page may exist since then.
        if self._page is None and path is not None:
            with suppress(OSError, PageError, ValueError):
                page = ArbiterPage(path)
                self._ahead_ns, self._tail = ahead_ns, page.get(Party.ROLLOUT, Field.HEAD)
                self._page = page


def lease_end_ns(leases: Sequence[LeaseSeen], number: int) -> int | None:
    """Return the lease's end; None if it still runs."""
    last = next((i for i in range(len(leases) - 1, -1, -1) if leases[i].number == number), None)
    if last is None:
        return None
    expires_ns = leases[last].expires_ns
    if last + 1 < len(leases):
        return min(expires_ns, leases[last + 1].at_ns)
    return expires_ns if expires_ns <= monotonic_ns() else None


def back_ns(work: Sequence[SpanRecord], ran: Sequence[Ran], begin_ns: int, end_ns: int, next_ns: int) -> int:
    """Return when serving had the device alone: the end of the lease, or of its last step."""
    last = max((span.end_ns for span in work if begin_ns <= span.start_ns < next_ns), default=0)
    return end_ns if last <= end_ns else end_ns + min(last - end_ns, _ran_ns(ran, end_ns, last))


def _ran_ns(ran: Sequence[Ran], begin_ns: int, end_ns: int) -> int:
    first = bisect.bisect_right(ran, begin_ns, key=lambda one: one.at_ns) - 1
    last = bisect.bisect_left(ran, end_ns, key=lambda one: one.at_ns)
    if first < 0 or last >= len(ran):
        return end_ns - begin_ns
    unseen_ns = begin_ns - ran[first].at_ns + ran[last].at_ns - end_ns
    return end_ns - begin_ns if unseen_ns > _LOOKS_APART_NS else ran[last].cpu_ns - ran[first].cpu_ns
