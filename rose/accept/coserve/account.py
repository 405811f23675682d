"""Where the device's time went in a round, from the spans on its page; what was idle and not harvested, by cause."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from rose.runtime.coserving.accounts.slices import slice_time
from rose.runtime.coserving.page import Span, SpanRecord
from rose.runtime.policy.slack import Hold

_Interval = tuple[int, int]
_YIELD = "yield between layers"
_NO_WORK, _BETWEEN_STEPS = "engine without work", "engine between steps"
_LONGER_SERVING = "serving itself ran longer"


@dataclass(frozen=True, slots=True)
class WorkSample:
    """How many requests waited or ran in the rollout engine at a moment; monotonic nanoseconds."""

    at_ns: int
    requests: int


class DeviceTime(TypedDict):
    """Nanoseconds of a round: serving, rollout, headroom and idle add up to its length.

    As `slice_time` has it, but for the time in which both engines were in a step. On a core that they share a step that
    does not run is still open, so this time is split by the share of the core that each then gets, not half each.
    """

    length_ns: int
    serving_ns: int
    rollout_ns: int
    headroom_ns: int
    idle_ns: int
    #: What rollouts have by the rule of `slice_time`.
    rollout_by_halves_ns: int
    #: Time in which both were in a step.
    overlap_ns: int
    #: Adds up to `headroom_ns`: by `Hold`, and what yields took. Time in which serving ran meanwhile is serving's.
    held_ns: dict[str, int]
    #: Adds up to `idle_ns`, by whether the rollout engine had anything to do; all in one where nothing was lent.
    idle_by_cause_ns: dict[str, int]
    yields: int
    #: Length of the yields, serving's steps included.
    yield_ns: int
    rollout_steps: int
    serving_steps: int


def device_time(
    spans: Sequence[SpanRecord],
    samples: Sequence[WorkSample],
    t0_ns: int,
    t1_ns: int,
    *,
    lent: bool,
    core_share: float = 0.5,
) -> DeviceTime:
    """Account for [t0_ns, t1_ns). `samples` say whether the rollout engine had work when nobody ran; `core_share` is
    its share of the core while both are in a step.
    """
    part = slice_time(spans, t0_ns, t1_ns)
    serving = _clipped(spans, Span.SERVING, t0_ns, t1_ns)
    rollout = _clipped(spans, Span.ROLLOUT, t0_ns, t1_ns)
    held: dict[str, int] = {}
    for span in spans:
        if span.kind in (Span.HELD, Span.YIELD):
            start, end = max(span.start_ns, t0_ns), min(span.end_ns, t1_ns)
            if start < end:
                name = _YIELD if span.kind is Span.YIELD else f"held: {Hold(span.aux).name}"
                held[name] = held.get(name, 0) + end - start - _overlap((start, end), serving)
    buckets = part.by_bucket
    rollout_ns = sum(end - start for start, end in rollout) - round(part.overlap_ns * (1 - core_share))
    yields = _clipped(spans, Span.YIELD, t0_ns, t1_ns)
    return DeviceTime(
        length_ns=t1_ns - t0_ns,
        serving_ns=buckets["serving"] + buckets["rollout"] - rollout_ns,
        rollout_ns=rollout_ns,
        headroom_ns=buckets["headroom"],
        idle_ns=buckets["idle"],
        rollout_by_halves_ns=buckets["rollout"],
        overlap_ns=part.overlap_ns,
        held_ns=held,
        idle_by_cause_ns=_idle(spans, samples, t0_ns, t1_ns, buckets["idle"], lent=lent),
        yields=len(yields),
        yield_ns=sum(end - start for start, end in yields),
        rollout_steps=len(rollout),
        serving_steps=len(serving),
    )


def lost_idle_ns(solo: DeviceTime, lent: DeviceTime) -> dict[str, int]:
    """The idle time of serving alone that rollouts did not get, by cause; adds up to that time less theirs.

    The rounds must be of one length. Where serving needed less time than alone, its cause is negative.
    """
    assert solo["length_ns"] == lent["length_ns"], "rounds of one length are compared"
    other = lent["length_ns"] - sum(lent[name] for name in ("serving_ns", "rollout_ns", "headroom_ns", "idle_ns"))
    causes = {_LONGER_SERVING: lent["serving_ns"] - solo["serving_ns"], **lent["held_ns"], **lent["idle_by_cause_ns"]}
    return {**causes, "other work": other} if other else causes


def harvest_share(solo: DeviceTime, lent: DeviceTime) -> float:
    """Rollouts' device time against the time that serving alone left idle."""
    return lent["rollout_ns"] / (solo["length_ns"] - solo["serving_ns"])


def still_open_ns(spans: Sequence[SpanRecord], t0_ns: int, t1_ns: int) -> list[int]:
    """From the begin of each serving step that met a rollout step, until that yielded or ended.

    On a GPU, how long it was still on the device; on a core, it may have waited for the core most of that time.
    """
    rollout = _clipped(spans, Span.ROLLOUT, t0_ns, t1_ns)
    starts = [start for start, _ in rollout]
    waits = []
    for start, _ in _clipped(spans, Span.SERVING, t0_ns, t1_ns):
        at = bisect_right(starts, start) - 1
        if at >= 0 and rollout[at][1] > start:
            waits.append(rollout[at][1] - start)
    return waits


@dataclass(frozen=True, slots=True)
class Arrival:
    """A serving request that found serving at rest and a rollout step on the device; nanoseconds, all of one clock.

    Its server received it, and `text_ns` later handed it to its scheduler. Serving wanted the device `wish_ns` after
    that, and `given_ns` after that no rollout step was on it. Of these rollouts computed for `computed_ns`: less where
    the kernel let serving compute on the same core beside a layer that was not finished.

    Where the kernel takes the core from rollouts for any other thread, `given_ns` is 0, since serving's thread has the
    core when it says that it wants it: `wish_ns` is then what it waited for it, and for the message.
    """

    text_ns: int
    wish_ns: int
    given_ns: int
    computed_ns: int

    @property
    def free_ns(self) -> int:
        """From the request being handed to serving's scheduler to no rollout step on the device."""
        return self.wish_ns + self.given_ns

    @property
    def work_ns(self) -> int:
        """What rollouts can have computed after the request was handed to serving's scheduler."""
        return self.wish_ns + self.computed_ns


def met(spans: Sequence[SpanRecord], t0_ns: int, t1_ns: int) -> list[Arrival]:
    """The arrivals in [t0_ns, t1_ns) that met a rollout step."""
    rollout = sorted((span for span in spans if span.kind is Span.ROLLOUT), key=lambda span: span.start_ns)
    starts = [span.start_ns for span in rollout]
    arrivals = []
    for span in spans:
        if span.kind is not Span.ARRIVAL or not t0_ns <= span.start_ns < t1_ns:
            continue
        wanted, handed = span.start_ns, span.start_ns - span.latency_ns
        at = bisect_right(starts, wanted) - 1
        if at >= 0 and rollout[at].end_ns > handed:
            given_ns = max(0, rollout[at].end_ns - wanted)
            computed_ns = min(given_ns, rollout[at].latency_ns)
            arrivals.append(Arrival(span.aux - span.latency_ns, span.latency_ns, given_ns, computed_ns))
    return arrivals


def _idle(
    spans: Sequence[SpanRecord], samples: Sequence[WorkSample], t0_ns: int, t1_ns: int, idle_ns: int, *, lent: bool
) -> dict[str, int]:
    if not lent:
        return {"not lent": idle_ns}
    busy = sorted(
        interval
        for kind in (Span.SERVING, Span.ROLLOUT, Span.HELD, Span.YIELD)
        for interval in _clipped(spans, kind, t0_ns, t1_ns)
    )
    starts, ends, latest = [], [], 0
    for start, end in busy:
        latest = max(latest, end)
        starts.append(start)
        ends.append(latest)
    empty = idle = 0
    for sample in samples:
        if t0_ns <= sample.at_ns < t1_ns:
            at = bisect_right(starts, sample.at_ns) - 1
            if at < 0 or ends[at] <= sample.at_ns:
                idle += 1
                empty += sample.requests == 0
    if idle == 0:
        return {_BETWEEN_STEPS: idle_ns}
    without_ns = idle_ns * empty // idle
    return {_NO_WORK: without_ns, _BETWEEN_STEPS: idle_ns - without_ns}


def _clipped(spans: Sequence[SpanRecord], kind: Span, t0_ns: int, t1_ns: int) -> list[_Interval]:
    clipped = [(max(span.start_ns, t0_ns), min(span.end_ns, t1_ns)) for span in spans if span.kind is kind]
    return sorted((start, end) for start, end in clipped if start < end)


def _overlap(interval: _Interval, others: Sequence[_Interval]) -> int:
    """Nanoseconds of `interval` inside `others`, which are in order and do not overlap."""
    start, end = interval
    at = max(0, bisect_right(others, (start, 0)) - 1)
    total = 0
    while at < len(others) and others[at][0] < end:
        total += max(0, min(end, others[at][1]) - max(start, others[at][0]))
        at += 1
    return total
