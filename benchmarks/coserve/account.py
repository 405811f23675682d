"""Device time of a round by cause, delays after an arrival, and statistics by round."""

import gzip
import json
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rose.accept.coserve.keeper import POLICIES
from rose.accept.coserve.rounds import Round, clipped
from rose.runtime.coserving.page import Span
from rose.runtime.policy.slack import Hold
from rose.runtime.traffic.trace import Trace

_YIELD = "yield between layers"
_NO_WORK, _BETWEEN_STEPS = "engine without work", "engine between steps"
_LONGER_SERVING = "serving itself ran longer"
_RESAMPLES = 10_000
#: Mooncake's timestamps are multiples of this; requests within it are spread evenly at random.
_MOONCAKE_GRAIN_MS = 3000


def held_ns(one: Round) -> dict[str, int]:
    """Return rollouts' waiting by `Hold`, and the time of yields; their sum is the round's headroom."""
    serving = clipped(one.spans, Span.SERVING, one.t0_ns, one.t1_ns)
    lengths_ns: dict[str, int] = {}
    for span in one.spans:
        start, end = max(span.start_ns, one.t0_ns), min(span.end_ns, one.t1_ns)
        if span.kind in (Span.HELD, Span.YIELD) and start < end:
            name = _YIELD if span.kind is Span.YIELD else f"held: {Hold(span.aux).name}"
            lengths_ns[name] = lengths_ns.get(name, 0) + end - start - _overlap((start, end), serving)
    return lengths_ns


def idle_by_cause_ns(one: Round) -> dict[str, int]:
    """Return the round's idle time, with and without work in the rollout engine."""
    idle_ns = one.device["idle_ns"]
    if not POLICIES[one.policy].lends:
        return {"not lent": idle_ns}
    kinds = (Span.SERVING, Span.ROLLOUT, Span.HELD, Span.YIELD)
    busy = sorted(part for kind in kinds for part in clipped(one.spans, kind, one.t0_ns, one.t1_ns))
    starts, ends, latest = [], [], 0
    for start, end in busy:
        latest = max(latest, end)
        starts.append(start)
        ends.append(latest)
    empty = idle = 0
    for at_ns, requests in one.samples:
        if one.t0_ns <= at_ns < one.t1_ns:
            at = bisect_right(starts, at_ns) - 1
            if at < 0 or ends[at] <= at_ns:
                idle += 1
                empty += requests == 0
    if idle == 0:
        return {_BETWEEN_STEPS: idle_ns}
    without_ns = idle_ns * empty // idle
    return {_NO_WORK: without_ns, _BETWEEN_STEPS: idle_ns - without_ns}


def lost_idle_ns(solo: Round, lent: Round) -> dict[str, int]:
    """Return the idle time of serving alone that rollouts did not get, by cause; negative where serving was faster."""
    alone, device = solo.device, lent.device
    assert alone["length_ns"] == device["length_ns"], "rounds of one length are compared"
    other_ns = device["length_ns"] - (
        device["serving_ns"] + device["rollout_ns"] + device["headroom_ns"] + device["idle_ns"]
    )
    causes = {_LONGER_SERVING: device["serving_ns"] - alone["serving_ns"], **held_ns(lent), **idle_by_cause_ns(lent)}
    return {**causes, "other work": other_ns} if other_ns else causes


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrived during a rollout step, ns: serving wants the device after `wish_ns`, rollouts leave after
    `given_ns` more (0 if the kernel preempts them), and compute for at most `computed_ns` of that time."""

    wish_ns: int
    given_ns: int
    computed_ns: int


def arrivals(one: Round) -> list[Arrival]:
    rollout = sorted((span for span in one.spans if span.kind is Span.ROLLOUT), key=lambda span: span.start_ns)
    starts = [span.start_ns for span in rollout]
    met = []
    for span in one.spans:
        if span.kind is not Span.ARRIVAL or not one.t0_ns <= span.start_ns < one.t1_ns:
            continue
        wanted_ns, handed_ns = span.start_ns, span.start_ns - span.latency_ns
        at = bisect_right(starts, wanted_ns) - 1
        if at >= 0 and rollout[at].end_ns > handed_ns:
            given_ns = max(0, rollout[at].end_ns - wanted_ns)
            computed_ns = min(given_ns, rollout[at].latency_ns)
            met.append(Arrival(span.latency_ns, given_ns, computed_ns))
    return met


def _overlap(interval: tuple[int, int], others: Sequence[tuple[int, int]]) -> int:
    """Return the nanoseconds of `interval` inside `others`, which are sorted and disjoint."""
    start, end = interval
    at = max(0, bisect_right(others, (start, 0)) - 1)
    total = 0
    while at < len(others) and others[at][0] < end:
        total += max(0, min(end, others[at][1]) - max(start, others[at][0]))
        at += 1
    return total


def summary(values: Sequence[float]) -> dict[str, object]:
    """Return the median, its 95% percentile bootstrap interval (None below three values), and the values."""
    interval = None
    if len(values) >= 3:
        drawn = np.random.default_rng(0).choice(np.asarray(values), (_RESAMPLES, len(values)))
        interval = tuple(float(edge) for edge in np.quantile(np.median(drawn, axis=1), [0.025, 0.975]))
    median = statistics.median(values) if values else None
    return {"median": median, "interval_95": interval, "by_round": [round(value, 4) for value in values]}


def mooncake(path: Path) -> Trace:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [json.loads(line) for line in text.splitlines() if line]
    at_ms = np.array([row["timestamp"] for row in rows], np.float64)
    at_ms += np.random.default_rng(0).uniform(0, _MOONCAKE_GRAIN_MS, len(rows))
    order = np.argsort(at_ms, kind="stable")
    arrival = np.rint((at_ms[order] - at_ms.min()) * 1e6).astype(np.int64)
    prompt, output = (np.array([row[name] for row in rows], np.int64) for name in ("input_length", "output_length"))
    name = path.name.partition(".")[0]
    return Trace(name, arrival, np.maximum(1, prompt[order]), np.maximum(1, output[order]))
