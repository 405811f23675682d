"""Divides device time exactly among seven buckets.

While rollouts run on credit (see `policy.credit`), they work beside serving. Their work counts as evenly spread over
this time: `rollout` gets the time of the work, and `serving` gets the rest. Otherwise, parties that work at the same
time get equal parts. If no party works, the time is `headroom` while a rollout step waits, else `idle`."""

from collections.abc import Iterable
from dataclasses import dataclass

from rose.events import BUCKETS
from rose.runtime.coserving.page import Span, SpanRecord


class Assignments:
    """A device's runs, oldest first, each with its begin in monotonic ns. One thread reads; others may add."""

    def __init__(self, run_id: str = "") -> None:
        self._changes: list[tuple[int, str]] = [(-(1 << 62), run_id)]

    @property
    def now(self) -> str:
        return self._changes[-1][1]

    def change(self, at_ns: int, run_id: str) -> None:
        if run_id != self.now:
            self._changes.append((at_ns, run_id))

    def at(self, at_ns: int) -> str:
        return next(run_id for since_ns, run_id in reversed(self._changes) if since_ns <= at_ns)

    def between(self, t0_ns: int, t1_ns: int) -> list[int]:
        return [since_ns for since_ns, _ in self._changes if t0_ns < since_ns < t1_ns]

    def forget(self, before_ns: int) -> None:
        while len(self._changes) > 1 and self._changes[1][0] <= before_ns:
            del self._changes[0]


_BUCKET_OF = {  # In the order of `BUCKETS`.
    Span.SERVING: "serving",
    Span.ROLLOUT: "rollout",
    Span.TRAIN: "train",
    Span.SYNC: "sync",
    Span.ACTIVATION: "activation",
}
_WANTING = (Span.HELD, Span.YIELD)


@dataclass(frozen=True, slots=True)
class Slice:
    by_bucket: dict[str, int]
    overlap_ns: int
    beside_ns: int = 0  # Time in which rollouts ran on credit.
    beside_work_ns: int = 0


def slice_time(spans: Iterable[SpanRecord], t0_ns: int, t1_ns: int) -> Slice:
    """Return the slice of [t0_ns, t1_ns). Spans of one party may touch but not overlap."""
    assert t0_ns <= t1_ns, f"a slice cannot end ({t1_ns}) before it begins ({t0_ns})"
    edges: list[tuple[int, int, SpanRecord]] = []
    for span in spans:
        start, end = max(span.start_ns, t0_ns), min(span.end_ns, t1_ns)
        if start < end:
            edges.append((start, 1, span))
            edges.append((end, -1, span))
    edges.sort(key=lambda edge: edge[0])

    totals = dict.fromkeys(BUCKETS, 0)
    active: dict[Span, int] = dict.fromkeys(Span, 0)
    on_credit: list[SpanRecord] = []
    overlap_ns = beside_ns = beside_work_ns = 0
    previous = t0_ns
    for at, change, span in [*edges, (t1_ns, 0, SpanRecord(Span.HELD, t1_ns, t1_ns))]:
        if at > previous:
            length_ns = at - previous
            if on_credit:
                work_ns = min(length_ns, *(length_ns * one.aux // (one.end_ns - one.start_ns) for one in on_credit))
                beside_ns, beside_work_ns = beside_ns + length_ns, beside_work_ns + work_ns
                totals["rollout"] += work_ns
                _credit(totals, active, length_ns - work_ns)
            else:
                overlap_ns += _credit(totals, active, length_ns)
            previous = at
        active[span.kind] += change
        if span.kind is Span.BESIDE:
            on_credit = [*on_credit, span] if change > 0 else [one for one in on_credit if one is not span]
    return Slice(totals, overlap_ns, beside_ns, beside_work_ns)


def _credit(totals: dict[str, int], active: dict[Span, int], length_ns: int) -> int:
    working = [bucket for kind, bucket in _BUCKET_OF.items() for _ in range(active[kind])]
    if not working:
        wanted = any(active[kind] for kind in _WANTING)
        totals["headroom" if wanted else "idle"] += length_ns
        return 0
    share, remainder = divmod(length_ns, len(working))
    for index, bucket in enumerate(working):
        totals[bucket] += share + (1 if index < remainder else 0)
    return length_ns if len(working) > 1 else 0
