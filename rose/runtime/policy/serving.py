"""What serving did of late, as far as lending must know it: how often it was late by itself, how long it is idle."""

from __future__ import annotations

from dataclasses import dataclass

from rose.runtime.policy.slack import ServingLoad

#: So many requests are "the last ones"; with fewer than the least, a share of them says nothing.
LAST_REQUESTS = 100
_LEAST_REQUESTS = 20
#: What serving missed so long ago is forgotten, once enough requests finished since or it did nothing in all that time.
#: A hundred requests alone would bar lending for hours where one comes a minute.
FORGET_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class ServingHistory:
    """Serving's counters as they were when the last requests finished: (finished, late alone, monotonic nanoseconds),
    oldest first."""

    counts: tuple[tuple[int, int, int], ...] = ()
    #: Since when it has nothing to do, monotonic nanoseconds; None: it has something.
    idle_since_ns: int | None = None

    def observe(self, load: ServingLoad | None, now_ns: int) -> ServingHistory:
        """The history after a look at `now_ns`. Serving that says nothing has no history."""
        if load is None:
            return ServingHistory()
        busy = load.wanted or load.waiting > 0 or load.running > 0
        since_ns = None if busy else now_ns if self.idle_since_ns is None else self.idle_since_ns
        now = (load.finished, load.late_alone, now_ns)
        counts = self.counts
        restarted = bool(counts) and load.finished < counts[-1][0]
        forgotten = since_ns is not None and now_ns - since_ns >= FORGET_NS
        if restarted or not counts or (forgotten and counts[0][:2] != now[:2]):
            counts = (now,)
        elif counts[-1][0] != load.finished:
            counts = (*counts, now)
            # The count before the last requests is where they begin.
            while len(counts) > 1 and _is_past(counts[1], now):
                counts = counts[1:]
        if counts == self.counts and since_ns == self.idle_since_ns:
            return self
        return ServingHistory(counts, since_ns)

    @property
    def late_alone_share(self) -> float:
        """Share of the last requests that missed a budget and would have without lending; 0 while too few are known."""
        if not self.counts:
            return 0.0
        (finished_before, late_before, _), (finished, late, _) = self.counts[0], self.counts[-1]
        requests = finished - finished_before
        return (late - late_before) / requests if requests >= _LEAST_REQUESTS else 0.0

    def idle_ns(self, now_ns: int) -> int:
        """For how long serving has had nothing to do; 0 while it has."""
        return 0 if self.idle_since_ns is None else now_ns - self.idle_since_ns


def _is_past(count: tuple[int, int, int], now: tuple[int, int, int]) -> bool:
    """Whether the requests before a count are not among the last ones any more."""
    requests = now[0] - count[0]
    return requests >= LAST_REQUESTS or (requests >= _LEAST_REQUESTS and now[2] - count[2] >= FORGET_NS)
