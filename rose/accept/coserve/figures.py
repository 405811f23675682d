"""Figures of rounds: quantiles, ratios round by round, and how sure they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rose.accept.coserve.rounds import Round, Served
from rose.runtime.policy.slack import Budgets

QUANTILES = (0.5, 0.9, 0.99)
#: Points of a distribution that are kept for a picture.
_POINTS = 101
_RESAMPLES = 10_000
Latency = Callable[[Served], int | None]


def ttft(request: Served) -> int | None:
    """Time to the first token, in nanoseconds."""
    return request.ttft_ns if request.completed else None


def tpot(request: Served) -> int | None:
    """Mean time for each further token, in nanoseconds."""
    return request.tpot_ns if request.completed else None


LATENCIES: dict[str, Latency] = {"TTFT": ttft, "TPOT": tpot}


def values_ms(rounds: Iterable[Round], latency: Latency) -> list[float]:
    """Milliseconds of every request that has this latency."""
    return [value / 1e6 for each in rounds for request in each.requests if (value := latency(request)) is not None]


def quantile(values: Sequence[float], share: float) -> float:
    """With linear interpolation between values; NaN of none."""
    return float(np.quantile(values, share)) if values else float("nan")


def distribution(values: Sequence[float]) -> list[float]:
    """The quantiles from 0 to 1 in equal steps; empty of none."""
    return [round(float(value), 3) for value in np.quantile(values, np.linspace(0, 1, _POINTS))] if values else []


def ratios(rounds: dict[str, list[Round]], policy: str, base: str, figure: Callable[[Round], float]) -> list[float]:
    """`figure` of a policy over that of another, round by round; rounds without one of them are left out."""
    by_number = {each.number: figure(each) for each in rounds.get(base, [])}
    pairs = [(figure(each), by_number[each.number]) for each in rounds.get(policy, []) if each.number in by_number]
    return [over / under for over, under in pairs if under > 0 and not math.isnan(over)]


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """95% of the medians of resampled values lie in it (percentile bootstrap); None of fewer than three."""
    if len(values) < 3:
        return None
    drawn = np.random.default_rng(seed).choice(np.asarray(values), (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


def summary(values: Sequence[float]) -> dict[str, object]:
    """Median, interval and the values themselves."""
    return {
        "median": statistics.median(values) if values else None,
        "interval_95": interval(values),
        "by_round": [round(value, 4) for value in values],
    }


def over_budget(one: Round, budgets: Budgets) -> int:
    """Requests that did not keep a promise; those that failed are among them."""
    return sum(not request.within(budgets) for request in one.requests)


def round_figures(one: Round, budgets: Budgets) -> dict[str, object]:
    """A round as the detail keeps it."""
    latencies = {
        f"{name.lower()}_ms": {
            f"p{share * 100:g}": round(quantile(values_ms([one], latency), share), 2) for share in QUANTILES
        }
        for name, latency in LATENCIES.items()
    }
    gaps = [request.tpot_max_ns / 1e6 for request in one.requests if request.tpot_max_ns is not None]
    return {
        "round": one.number,
        "policy": one.policy,
        "requests": len(one.requests),
        **latencies,
        "longest_gap_ms_p99": round(quantile(gaps, 0.99), 2) if gaps else None,
        "over_budget": over_budget(one, budgets),
        "failed": sum(not request.completed for request in one.requests),
        "failures": sorted({request.reason for request in one.requests if request.reason}),
        "send_delay_ms_max": max((request.send_delay_ns for request in one.requests), default=0) / 1e6,
        "device": one.device,
        "rollout": {**one.rollout, "seconds": round(one.rollout_s, 3), "tokens_per_s": round(one.tokens_per_s, 1)},
        "cpu_s": one.cpu_s,
        "lost_spans": one.lost_spans,
    }
