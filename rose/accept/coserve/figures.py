"""Figures of rounds: latencies of requests, and what the detail of a report keeps of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rose.accept.coserve.rounds import Round, Served
from rose.runtime.policy.slack import Budgets

QUANTILES = (0.5, 0.9, 0.99)
Latency = Callable[[Served], int | None]
#: Time to the first token, and mean time for each further one, in nanoseconds.
LATENCIES: dict[str, Latency] = {
    "TTFT": lambda request: request.ttft_ns if request.completed else None,
    "TPOT": lambda request: request.tpot_ns if request.completed else None,
}


def values_ms(rounds: Iterable[Round], latency: Latency) -> list[float]:
    """Return the milliseconds of every request that has this latency."""
    return [value / 1e6 for one in rounds for request in one.requests if (value := latency(request)) is not None]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile with linear interpolation between values; NaN without values."""
    return float(np.quantile(values, share)) if values else float("nan")


def budgets_of(alone: Round, factor: float) -> Budgets:
    """Return latency budgets: the 99th percentiles of serving alone times `factor`."""
    worst_ms = [quantile(values_ms([alone], latency), 0.99) for latency in LATENCIES.values()]
    return Budgets(*(round(factor * 1e6 * value) for value in worst_ms))


def over_budget(one: Round, budgets: Budgets) -> int:
    """Return how many requests did not keep a promise; failed requests are among them."""
    return sum(not request.within(budgets) for request in one.requests)


def round_figures(one: Round, budgets: Budgets) -> dict[str, object]:
    """Return a round as the detail keeps it."""
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
        "failures": sorted(request.reason or "not completed" for request in one.requests if not request.completed),
        "send_delay_ms_max": max((request.send_delay_ns for request in one.requests), default=0) / 1e6,
        "device": one.device,
        "rollout": {**one.rollout, "seconds": round(one.rollout_s, 3), "tokens_per_s": round(one.tokens_per_s, 1)},
        "lost_spans": one.lost_spans,
    }
