"""Keeps serving's recent history: how often serving was late without lending, and since when it is idle."""

from __future__ import annotations

from dataclasses import dataclass

from rose.runtime.policy.slack import ServingLoad

LAST_REQUESTS = 100  # Number of "last" requests.
_LEAST_REQUESTS = 20  # A share is computed only from at least this many requests.
FORGET_NS = 60_000_000_000  # Lateness is forgotten. Otherwise a hundred requests could stop lending for hours.


@dataclass(frozen=True, slots=True)
class ServingHistory:
    counts: tuple[tuple[int, int, int], ...] = ()  # (finished, late alone, monotonic ns), the oldest first.
    idle_since_ns: int | None = None  # None: busy.

    def observe(self, load: ServingLoad | None, now_ns: int) -> ServingHistory:
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
            while len(counts) > 1 and _is_past(counts[1], now):
                counts = counts[1:]
        history = ServingHistory(counts, since_ns)
        return self if history == self else history

    @property
    def late_alone_share(self) -> float:
        """Return the share of recent requests that were late even without lending; 0 after too few requests."""
        if not self.counts:
            return 0.0
        (finished_before, late_before, _), (finished, late, _) = self.counts[0], self.counts[-1]
        requests = finished - finished_before
        return (late - late_before) / requests if requests >= _LEAST_REQUESTS else 0.0

    def idle_ns(self, now_ns: int) -> int:
        return 0 if self.idle_since_ns is None else now_ns - self.idle_since_ns


def _is_past(count: tuple[int, int, int], now: tuple[int, int, int]) -> bool:
    requests = now[0] - count[0]
    return requests >= LAST_REQUESTS or (requests >= _LEAST_REQUESTS and now[2] - count[2] >= FORGET_NS)
