"""Figures of the stage `gate`: plain arithmetic on what its two processes and the accountant left."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rose.accept.gate.messages import Arrival, Round, Step, Yield
from rose.clock import Anchor
from rose.events import BUCKETS, DeviceSlice
from rose.runtime.coserving.page import Span, SpanRecord
from rose.runtime.policy.slack import Hold

#: Of a round that serving has to itself.
_BUSY_SHARE = 0.4
_STEPS_MIN, _STEPS_MAX = 2, 4
#: Serving's steps of a round's beginning do not count.
SETTLING_NS = 250_000_000


def arrivals(seed: int, step_ns: int, from_ns: int, until_ns: int) -> tuple[Arrival, ...]:
    """Requests that keep serving busy for two fifths of the time if a step takes `step_ns`; at random, by `seed`."""
    chance = random.Random(seed)
    made: list[Arrival] = []
    at_ns = float(from_ns)
    idle_ns = step_ns * (_STEPS_MIN + _STEPS_MAX) / 2 * (1 - _BUSY_SHARE) / _BUSY_SHARE
    while True:
        at_ns += chance.expovariate(1 / idle_ns)
        if at_ns >= until_ns:
            return tuple(made)
        steps = chance.randint(_STEPS_MIN, _STEPS_MAX)
        made.append(Arrival(round(at_ns), steps))
        at_ns += steps * step_ns


def latency_ms(steps: Sequence[Step], share: float) -> float:
    """The quantile of this share of what steps took, from when they were due to their end; there is one at least."""
    return float(np.quantile([step.end_ns - step.due_ns for step in steps], share)) / 1e6


def busy_share(steps: Iterable[Step], from_ns: int, until_ns: int) -> float:
    """Share of [from_ns, until_ns) in which serving was in a step; steps do not overlap."""
    busy_ns = sum(max(0, min(step.end_ns, until_ns) - max(step.begin_ns, from_ns)) for step in steps)
    return busy_ns / (until_ns - from_ns)


def ratio(value: float, base: float) -> float:
    """`value` / `base`; 0 where there is nothing to compare with, so that no target is reached by it."""
    return value / base if base > 0 else 0.0


def layers_left(yields: Iterable[Yield], layers: int) -> int:
    """The most layers that were on the device as a step gave way; all of a step's if none was seen to."""
    return max((max(given.on_device, given.left) for given in yields), default=layers)


def slice_error_ns(slices: Sequence[DeviceSlice], began_ns: int, ended_ns: int, anchor: Anchor) -> int:
    """By how much slices miss [began_ns, ended_ns), monotonic: in their sums, between them and at both ends."""
    edges = [anchor.utc_ns(began_ns), *(edge for part in slices for edge in (part.t0_ns, part.t1_ns))]
    edges.append(anchor.utc_ns(ended_ns))
    gaps = sum(abs(after - before) for before, after in list(pairwise(edges))[::2])
    return gaps + sum(abs(sum(_by_bucket(part).values()) - (part.t1_ns - part.t0_ns)) for part in slices)


def device_shares(slices: Iterable[DeviceSlice]) -> dict[str, float]:
    """Share of each bucket in all of these slices' time; empty of none."""
    totals = dict.fromkeys(BUCKETS, 0)
    for part in slices:
        for bucket, value_ns in _by_bucket(part).items():
            totals[bucket] += value_ns
    length_ns = sum(totals.values())
    return {bucket: value_ns / length_ns for bucket, value_ns in totals.items()} if length_ns else {}


def mode_figures(rounds: Sequence[Round], slices: Sequence[DeviceSlice]) -> dict[str, Any]:
    """What a mode's rounds came to; `slices` are those of its leases. None for what did not happen."""
    seconds = sum(part.until_ns - part.from_ns for part in rounds) / 1e9
    # After a pause a card is slow to come to its clocks, whoever works on it.
    steps = [step for part in rounds for step in part.steps if step.due_ns >= part.from_ns + SETTLING_NS]
    figures: dict[str, Any] = {
        "rounds": len(rounds),
        "seconds": seconds,
        "serving_steps": len(steps),
        "latency_p50_ms": latency_ms(steps, 0.5) if steps else None,
        "latency_p99_ms": latency_ms(steps, 0.99) if steps else None,
        "busy_share": sum(busy_share(part.steps, part.from_ns, part.until_ns) for part in rounds) / len(rounds),
    }
    done = [part.rollout for part in rounds if part.rollout is not None]
    if not done:
        return figures
    given = [given for part in done for given in part.yields]
    free_ms = [one.free_ns / 1e6 for one in given]
    return figures | {
        "rollout_steps": sum(part.steps for part in done),
        "rollout_steps_per_s": sum(part.steps for part in done) / seconds,
        "yields": len(given),
        "yields_by_kernel": sum(part.taken for part in done),
        "steps_given_up": sum(part.abandoned for part in done),
        "requests_ended": sum(part.ended for part in done),
        "layers_on_device_at_yield_max": max((one.on_device for one in given), default=None),
        "layers_left_when_given_max": max((one.left for one in given), default=None),
        "layers_ended_after_wish_max": max((one.after_wish for one in given), default=None),
        "wish_to_free_p50_ms": float(np.quantile(free_ms, 0.5)) if given else None,
        "wish_to_free_p99_ms": float(np.quantile(free_ms, 0.99)) if given else None,
        "device_time": device_shares(slices),
    }


def waited_ms(rounds: Sequence[Round], spans: Iterable[SpanRecord]) -> dict[str, float]:
    """What rollouts waited for in these rounds, in milliseconds: by `Hold`, and what their yields took."""
    waits: dict[str, float] = {}
    for span in spans:
        if span.kind not in (Span.HELD, Span.YIELD):
            continue
        name = "yield" if span.kind is Span.YIELD else Hold(span.aux).name.lower()
        for part in rounds:
            length_ns = min(span.end_ns, part.until_ns) - max(span.start_ns, part.from_ns)
            if length_ns > 0:
                waits[name] = waits.get(name, 0.0) + length_ns / 1e6
    return waits


def _by_bucket(part: DeviceSlice) -> dict[str, int]:
    return {bucket: int(getattr(part, f"{bucket}_ns")) for bucket in BUCKETS}
