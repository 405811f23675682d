"""Claims about the rounds."""

import statistics
from typing import Any

from benchmarks.coserve import account
from rose.accept.coserve import rounds
from rose.accept.coserve.keeper import IDLE, POLICIES, ROSE, ROSE_LAYERS, ROSE_SLACK, SHARE_ALL, SOLO
from rose.accept.coserve.rounds import LATENCIES, QUANTILES, Round
from rose.accept.report import Report
from rose.runtime.policy.slack import Budgets

_RATIOS = (  #: (latency, quantile, target of the ratio, whether it is about a tail)
    ("TTFT", 0.5, 1.05, False),
    ("TTFT", 0.99, 1.05, True),
    ("TPOT", 0.5, 1.05, False),
    ("TPOT", 0.99, 1.10, True),
)
_YIELD_MARGIN_MS = 2.0
_ABOUT = {
    SOLO: "serving alone; the rollout engine is idle",
    IDLE: "rollouts run while serving rests: slack, regret and the kernel's idle class",
    ROSE: "and beside serving's requests, whose tokens may take 1.25 times what they take alone",
    ROSE_SLACK: "and beside serving's requests, for all that their latency budgets leave",
    ROSE_LAYERS: "slack, regret and yields between layers alone, where no kernel takes a core away",
    SHARE_ALL: "no guard; the rollout engine runs like the serving one",
    "static_split": "a fixed half of the device for rollouts, whatever serving does",
}


def claim(report: Report, played: dict[str, list[Round]], budgets: Budgets, seconds: float, layers: int) -> None:
    report.detail["policies"] = {name: _ABOUT[name] for name in played}
    report.detail["budgets_ms"] = {"ttft": budgets.ttft_ns / 1e6, "tpot": budgets.tpot_ns / 1e6}
    report.detail["rounds"] = [rounds.round_figures(one, budgets) for series in played.values() for one in series]
    report.detail["ratios_to_solo"] = {
        name: {
            f"{what} p{share * 100:g}": account.summary(_latency_ratios(played, name, what, share))
            for what in LATENCIES
            for share in QUANTILES
        }
        for name in played
        if name != SOLO
    }
    report.detail["harvest"] = {
        name: _harvest(played, name) for name, series in played.items() if POLICIES[name].lends and SOLO in played
    }
    if IDLE in played and SOLO in played:
        _claim_latency(report, played, budgets)
        report.claim("idle time harvested", statistics.median(_shares(played, IDLE)), "share", 0.80, "higher")
    if IDLE in played and SHARE_ALL in played:
        tokens = rounds.ratios(played, IDLE, SHARE_ALL, lambda one: one.tokens_per_s)
        report.detail["tokens_to_share_all"] = account.summary(tokens)
        report.claim("rollout tokens, idle / share_all", statistics.median(tokens), "x", 0.85, "higher")
    if IDLE in played:
        _claim_given(report, played, seconds, layers)


def claim_beside(report: Report, played: dict[str, list[Round]], budgets: Budgets, load: str) -> None:
    report.detail[load] = {
        "budgets_ms": {"ttft": budgets.ttft_ns / 1e6, "tpot": budgets.tpot_ns / 1e6},
        "rounds": [rounds.round_figures(one, budgets) for series in played.values() for one in series],
        "frontier": {name: _frontier(played, name, budgets) for name in played},
    }
    rounds.claim_never_empty(report, played, budgets, load)


def _frontier(played: dict[str, list[Round]], name: str, budgets: Budgets) -> dict[str, object]:
    return {
        "rollout_tokens_per_s": statistics.median(one.tokens_per_s for one in played[name]),
        "mean_tpot_to_solo": account.summary(rounds.ratios(played, name, SOLO, rounds.mean_tpot_ms)),
        "ttft_p99_to_solo": account.summary(_latency_ratios(played, name, "TTFT", 0.99)),
        "over_budget": sum(rounds.over_budget(one, budgets) for one in played[name]),
        "requests": sum(len(one.requests) for one in played[name]),
    }


def _claim_latency(report: Report, played: dict[str, list[Round]], budgets: Budgets) -> None:
    for what, share, target, tail in _RATIOS:
        if not (tail and report.quick):
            ratios = _latency_ratios(played, IDLE, what, share)
            report.claim(f"{what} p{share * 100:g}, idle / solo", statistics.median(ratios), "x", target, "lower")
    over = {name: sum(rounds.over_budget(one, budgets) for one in played[name]) for name in (IDLE, SOLO)}
    report.claim("requests over budget, idle less solo", over[IDLE] - over[SOLO], "requests", 0, "lower")


def _claim_given(report: Report, played: dict[str, list[Round]], seconds: float, layers: int) -> None:
    """Claim the time from an arrival until rollouts are off the device: at most a layer and a margin."""
    detail = report.detail["given_way"] = {
        name: _given(played[name], layers) for name in played if POLICIES[name].lends and POLICIES[name].decides == ROSE
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


def _given(played: list[Round], layers: int) -> dict[str, Any]:
    arrivals = [arrival for one in played for arrival in account.arrivals(one)]
    steps = sum(one.device["rollout_steps"] for one in played)
    step_ms = sum(one.device["rollout_ns"] for one in played) / max(1, steps) / 1e6
    return {
        "layer_ms": step_ms / layers,
        "requests": len(arrivals),
        "free_ms": _quantiles([(arrival.wish_ns + arrival.given_ns) / 1e6 for arrival in arrivals]),
        "rollouts_computed_ms": _quantiles([(arrival.wish_ns + arrival.computed_ns) / 1e6 for arrival in arrivals]),
    }


def _quantiles(values: list[float]) -> dict[str, float]:
    return {f"p{share * 100:g}": rounds.quantile(values, share) for share in QUANTILES} if values else {}


def _harvest(played: dict[str, list[Round]], name: str) -> dict[str, object]:
    """Return rollouts' share of serving's idle time, and the causes of the rest."""
    solo = {one.number: one for one in played[SOLO]}
    lost: dict[str, int] = {}
    idle_ns = rollout_ns = 0
    for one in played[name]:
        alone = solo[one.number].device
        idle_ns += alone["length_ns"] - alone["serving_ns"]
        rollout_ns += one.device["rollout_ns"]
        for cause, length_ns in account.lost_idle_ns(solo[one.number], one).items():
            lost[cause] = lost.get(cause, 0) + length_ns
    return {
        "share": account.summary(_shares(played, name)),
        "idle_alone_s": idle_ns / 1e9,
        "rollout_s": rollout_ns / 1e9,
        "lost_s": {cause: round(length_ns / 1e9, 3) for cause, length_ns in sorted(lost.items())},
    }


def _shares(played: dict[str, list[Round]], name: str) -> list[float]:
    solo = {one.number: one.device for one in played[SOLO]}
    return [rounds.harvest_share(solo[one.number], one.device) for one in played[name]]


def _latency_ratios(played: dict[str, list[Round]], name: str, what: str, share: float) -> list[float]:
    def of_round(one: Round) -> float:
        return rounds.quantile(rounds.values_ms([one], LATENCIES[what]), share)

    return rounds.ratios(played, name, SOLO, of_round)
