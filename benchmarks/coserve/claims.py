"""Report the claims about the rounds, with their detail."""

import statistics
from typing import Any

from benchmarks.coserve import account
from rose.accept.coserve.keeper import IDLE, POLICIES, ROSE, ROSE_LAYERS, SHARE_ALL, SOLO
from rose.accept.coserve.rounds import (
    LATENCIES,
    QUANTILES,
    Round,
    claim_never_empty,
    harvest_share,
    mean_tpot_ms,
    over_budget,
    quantile,
    ratios,
    round_figures,
    values_ms,
)
from rose.accept.report import Report
from rose.runtime.policy.slack import Budgets

_RATIOS = (  #: (latency, quantile, target of the ratio, whether it is about a tail)
    ("TTFT", 0.5, 1.05, False),
    ("TTFT", 0.99, 1.05, True),
    ("TPOT", 0.5, 1.05, False),
    ("TPOT", 0.99, 1.10, True),
)
_YIELD_MARGIN_MS = 2.0


def claim(report: Report, rounds: dict[str, list[Round]], budgets: Budgets, seconds: float, layers: int) -> None:
    report.detail["policies"] = {name: POLICIES[name].about for name in rounds}
    report.detail["budgets_ms"] = {"ttft": budgets.ttft_ns / 1e6, "tpot": budgets.tpot_ns / 1e6}
    report.detail["rounds"] = [round_figures(one, budgets) for each in rounds.values() for one in each]
    report.detail["ratios_to_solo"] = {
        name: {
            f"{what} p{share * 100:g}": account.summary(_latency_ratios(rounds, name, what, share))
            for what in LATENCIES
            for share in QUANTILES
        }
        for name in rounds
        if name != SOLO
    }
    report.detail["harvest"] = {
        name: _harvest(rounds, name) for name, each in rounds.items() if POLICIES[name].lends and SOLO in rounds
    }
    if IDLE in rounds and SOLO in rounds:
        _claim_latency(report, rounds, budgets)
        report.claim("idle time harvested", statistics.median(_shares(rounds, IDLE)), "share", 0.80, "higher")
    if IDLE in rounds and SHARE_ALL in rounds:
        tokens = ratios(rounds, IDLE, SHARE_ALL, lambda one: one.tokens_per_s)
        report.detail["tokens_to_share_all"] = account.summary(tokens)
        report.claim("rollout tokens, idle / share_all", _median(tokens), "x", 0.85, "higher")
    if IDLE in rounds:
        _claim_given(report, rounds, seconds, layers)


def claim_beside(report: Report, rounds: dict[str, list[Round]], budgets: Budgets, load: str) -> None:
    """Make the claims about serving that is never empty, with what each policy gave serving and got for rollouts."""
    report.detail[load] = {
        "budgets_ms": {"ttft": budgets.ttft_ns / 1e6, "tpot": budgets.tpot_ns / 1e6},
        "rounds": [round_figures(one, budgets) for each in rounds.values() for one in each],
        "frontier": {name: _frontier(rounds, name, budgets) for name in rounds},
    }
    claim_never_empty(report, rounds, budgets, load)


def _frontier(rounds: dict[str, list[Round]], name: str, budgets: Budgets) -> dict[str, object]:
    return {
        "rollout_tokens_per_s": statistics.median(one.tokens_per_s for one in rounds[name]),
        "mean_tpot_to_solo": account.summary(ratios(rounds, name, SOLO, mean_tpot_ms)),
        "ttft_p99_to_solo": account.summary(_latency_ratios(rounds, name, "TTFT", 0.99)),
        "over_budget": sum(over_budget(one, budgets) for one in rounds[name]),
        "requests": sum(len(one.requests) for one in rounds[name]),
    }


def _claim_latency(report: Report, rounds: dict[str, list[Round]], budgets: Budgets) -> None:
    for what, share, target, tail in _RATIOS:
        if not (tail and report.quick):
            ratios = _latency_ratios(rounds, IDLE, what, share)
            report.claim(f"{what} p{share * 100:g}, idle / solo", _median(ratios), "x", target, "lower")
    over = {name: sum(over_budget(one, budgets) for one in rounds[name]) for name in (IDLE, SOLO)}
    report.claim("requests over budget, idle less solo", over[IDLE] - over[SOLO], "requests", 0, "lower")


def _claim_given(report: Report, rounds: dict[str, list[Round]], seconds: float, layers: int) -> None:
    """Claim the time until rollouts are off the device for a serving request: at most a layer, and a margin. The time
    begins when the server hands the request to its scheduler's process, after HTTP and tokenization. It ends with the
    last work of a rollout step. Requests count that met a rollout step and no step of serving's own. Without the
    kernel's idle class an unfinished layer stays on the core beside serving, which has nearly all of the core: the
    claim is then the time that rollouts still computed, as nothing else would delay serving on a GPU."""
    detail = report.detail["given_way"] = {
        name: _given(rounds[name], layers) for name in rounds if POLICIES[name].lends and POLICIES[name].decides == ROSE
    }
    figure = detail[IDLE]
    if not figure["requests"]:
        figure["reason"] = (
            "not measured: no request met a rollout step; the figure is the length of a round, which it cannot exceed"
        )
    value_ms = figure["free_ms"]["p99"] if figure["requests"] else seconds * 1e3
    target_ms = round(figure["layer_ms"] + _YIELD_MARGIN_MS, 3)
    report.claim("serving arrival to rollouts off the device, p99", value_ms, "ms", target_ms, "lower")
    alone = detail.get(ROSE_LAYERS)
    if alone is not None and alone["requests"]:
        target_ms = round(alone["layer_ms"] + _YIELD_MARGIN_MS, 3)
        value_ms = alone["rollouts_computed_ms"]["p99"]
        report.claim("rollouts' time after a serving arrival, rose_layers, p99", value_ms, "ms", target_ms, "lower")


def _given(rounds: list[Round], layers: int) -> dict[str, Any]:
    arrivals = [arrival for one in rounds for arrival in account.arrivals(one)]
    steps = sum(one.device["rollout_steps"] for one in rounds)
    step_ms = sum(one.device["rollout_ns"] for one in rounds) / max(1, steps) / 1e6
    return {
        "layer_ms": step_ms / layers,
        "requests": len(arrivals),
        "free_ms": _quantiles([arrival.free_ns / 1e6 for arrival in arrivals]),
        "rollouts_computed_ms": _quantiles([arrival.work_ns / 1e6 for arrival in arrivals]),
    }


def _quantiles(values: list[float]) -> dict[str, float]:
    return {f"p{share * 100:g}": quantile(values, share) for share in QUANTILES} if values else {}


def _harvest(rounds: dict[str, list[Round]], name: str) -> dict[str, object]:
    """Return the share of serving's idle time that rollouts got, also by the published rule of slices, and the rest."""
    solo = {one.number: one for one in rounds[SOLO]}
    lost: dict[str, int] = {}
    idle_ns = rollout_ns = by_halves_ns = 0
    for one in rounds[name]:
        alone = solo[one.number].device
        idle_ns += alone["length_ns"] - alone["serving_ns"]
        rollout_ns += one.device["rollout_ns"]
        by_halves_ns += one.device["rollout_by_halves_ns"]
        for cause, length_ns in account.lost_idle_ns(solo[one.number], one).items():
            lost[cause] = lost.get(cause, 0) + length_ns
    return {
        "share": account.summary(_shares(rounds, name)),
        "share_by_halves": by_halves_ns / idle_ns,
        "idle_alone_s": idle_ns / 1e9,
        "rollout_s": rollout_ns / 1e9,
        "lost_s": {cause: round(length_ns / 1e9, 3) for cause, length_ns in sorted(lost.items())},
    }


def _shares(rounds: dict[str, list[Round]], name: str) -> list[float]:
    solo = {one.number: one.device for one in rounds[SOLO]}
    return [harvest_share(solo[one.number], one.device) for one in rounds[name]]


def _latency_ratios(rounds: dict[str, list[Round]], name: str, what: str, share: float) -> list[float]:
    def of_round(one: Round) -> float:
        return quantile(values_ms([one], LATENCIES[what]), share)

    return ratios(rounds, name, SOLO, of_round)


def _median(values: list[float]) -> float:
    assert values, "both policies were played, and every round has requests that completed"
    return statistics.median(values)
