"""Plays rounds and computes their figures. Each round has one policy, and all rounds have the same arrivals."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

import numpy as np

from rose.accept.coserve.host import ROLLOUT, SERVING, Host
from rose.accept.coserve.keeper import POLICIES, ROSE, ROSE_SLACK, SHARE_ALL, SOLO, Keeper
from rose.accept.coserve.traffic import Arrivals
from rose.accept.coserve.worker import Worker
from rose.accept.report import Report
from rose.clock import monotonic_ns
from rose.events import Request
from rose.runtime.coserving.accounts.slices import slice_time
from rose.runtime.coserving.page import Field, Party, Span, SpanRecord
from rose.runtime.models import models
from rose.runtime.policy.slack import Budgets

_RAMP_S = 1.0
_TTFT_RATIO, _TTFT_MARGIN_MS = 1.05, 3.0  # Beside rollouts a first token may take this much longer than alone.


class DeviceTime(TypedDict):
    """Device time of a round, in ns. The sum of serving, rollout, headroom and idle is the round's length."""

    length_ns: int
    serving_ns: int
    rollout_ns: int
    headroom_ns: int
    idle_ns: int
    overlap_ns: int
    rollout_steps: int


def device_time(spans: Sequence[SpanRecord], t0_ns: int, t1_ns: int, *, core_share: float = 0.5) -> DeviceTime:
    """Return the device time in [t0_ns, t1_ns). `core_share` is the rollouts' share while both engines compute."""
    part = slice_time(spans, t0_ns, t1_ns)
    buckets = part.by_bucket
    rollout = clipped(spans, Span.ROLLOUT, t0_ns, t1_ns)
    beside_ns = part.beside_work_ns
    rollout_ns = sum(end - start for start, end in rollout) - round(part.overlap_ns * (1 - core_share)) + beside_ns
    return DeviceTime(
        length_ns=t1_ns - t0_ns,
        serving_ns=buckets["serving"] + buckets["rollout"] - rollout_ns,
        rollout_ns=rollout_ns,
        headroom_ns=buckets["headroom"],
        idle_ns=buckets["idle"],
        overlap_ns=part.overlap_ns,
        rollout_steps=len(rollout),
    )


def clipped(spans: Sequence[SpanRecord], kind: Span, t0_ns: int, t1_ns: int) -> list[tuple[int, int]]:
    parts = [(max(span.start_ns, t0_ns), min(span.end_ns, t1_ns)) for span in spans if span.kind is kind]
    return sorted((start, end) for start, end in parts if start < end)


def harvest_share(solo: DeviceTime, lent: DeviceTime) -> float:
    return lent["rollout_ns"] / (solo["length_ns"] - solo["serving_ns"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    policy: str
    number: int
    t0_ns: int
    t1_ns: int
    requests: tuple[Request, ...]
    spans: tuple[SpanRecord, ...]
    samples: tuple[tuple[int, int], ...] = ()  # (monotonic ns, requests that waited or ran in the rollout engine).
    rollout: dict[str, Any]
    tokens: int  # of rollouts
    lost_spans: int

    @property
    def device(self) -> DeviceTime:
        return device_time(self.spans, self.t0_ns, self.t1_ns, core_share=POLICIES[self.policy].core_share)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / (self.t1_ns - self.t0_ns) * 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    host: Host
    serving: Worker
    rollout: Worker
    turns: int
    budgets: Budgets
    max_prompt_tokens: int

    def keeper(self, policy: str) -> Keeper:
        host, way = self.host, POLICIES[policy]
        host.adopt(way)
        return Keeper(host.page, host.memory, way, self.budgets, self.max_prompt_tokens, host.rollout_tokens)

    def play(self, policy: str, number: int, arrivals: Arrivals, seconds: float, seed: int) -> Round:
        """Play a round. Rollouts end with the round; the last serving requests end later."""
        lends = POLICIES[policy].lends
        keeper = self.keeper(policy)
        rollout: dict[str, Any] = {}
        keeper.start()
        try:
            if lends:
                self.rollout.tell(url=self.host.engines[ROLLOUT].url, turns=self.turns, seed=seed)
            time.sleep(_RAMP_S)
            self.serving.tell(**serving_command(self.host.engines[SERVING].url, arrivals, seed))
            t0_ns = int(self.serving.hear()["began_ns"])
            t1_ns = t0_ns + round(seconds * 1e9)
            tokens = self.host.page.get(Party.ROLLOUT, Field.TOKENS)
            time.sleep(max(0.0, (t1_ns - monotonic_ns()) / 1e9))
            tokens = self.host.page.get(Party.ROLLOUT, Field.TOKENS) - tokens
            if lends:
                self.rollout.tell(stop=True)
                rollout = self.rollout.hear()
            requests = self.serving.hear()["requests"]
        finally:
            keeper.stop()
        return Round(
            policy=policy,
            number=number,
            t0_ns=t0_ns,
            t1_ns=t1_ns,
            requests=tuple(requests),
            spans=tuple(keeper.spans),
            samples=tuple(keeper.samples),
            rollout=rollout,
            tokens=tokens,
            lost_spans=keeper.lost_spans,
        )


def serving_command(url: str, arrivals: Arrivals, seed: int) -> dict[str, object]:
    return {"url": url, "model": models.SMOLLM2, "seed": seed, **asdict(arrivals)}


def order(policies: Sequence[str], number: int) -> list[str]:
    start = number % len(policies)
    return [*policies[start:], *policies[:start]]


QUANTILES = (0.5, 0.9, 0.99)
Figure = Callable[["Round"], float]
Latency = Callable[[Request], int | None]
LATENCIES: dict[str, Latency] = {  # Time to the first token, and mean time per further token, ns.
    "TTFT": lambda request: request.ttft_ns if request.outcome == "completed" else None,
    "TPOT": lambda request: request.tpot_mean_ns if request.outcome == "completed" else None,
}


def values_ms(rounds: Iterable[Round], latency: Latency) -> list[float]:
    return [value / 1e6 for one in rounds for request in one.requests if (value := latency(request)) is not None]


def quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else float("nan")


def budgets_of(alone: Round, factor: float) -> Budgets:
    worst_ms = [quantile(values_ms([alone], latency), 0.99) for latency in LATENCIES.values()]
    return Budgets(*(round(factor * 1e6 * value) for value in worst_ms))


def mean_live(one: Round, arrivals: Arrivals) -> float:
    """Return the mean number of live requests, by Little's law."""
    took_ns = [
        request.ttft_ns + (request.tpot_mean_ns or 0) * (tokens - 1)
        for request, tokens in zip(one.requests, arrivals.output_tokens, strict=True)
        if request.ttft_ns is not None
    ]
    return sum(took_ns) / (one.t1_ns - one.t0_ns)


def over_budget(one: Round, budgets: Budgets) -> int:
    return sum(
        request.outcome != "completed"
        or request.ttft_ns is None
        or request.ttft_ns > budgets.ttft_ns
        or (request.tpot_mean_ns or 0) > budgets.tpot_ns
        for request in one.requests
    )


def ratios(rounds: Mapping[str, Sequence[Round]], policy: str, base: str, figure: Figure) -> list[float]:
    by_number = {one.number: figure(one) for one in rounds.get(base, [])}
    pairs = [(figure(one), by_number[one.number]) for one in rounds.get(policy, []) if one.number in by_number]
    return [over / under for over, under in pairs if under > 0 and not math.isnan(over)]


def mean_tpot_ms(one: Round) -> float:
    return statistics.fmean(values_ms([one], LATENCIES["TPOT"]))


def claim_never_empty(report: Report, rounds: Mapping[str, Sequence[Round]], budgets: Budgets, load: str) -> None:
    if ROSE_SLACK in rounds:
        slack, solo = (sum(over_budget(one, budgets) for one in rounds[name]) for name in (ROSE_SLACK, SOLO))
        report.claim(f"{load}: requests over budget, rose_slack less solo", slack - solo, "requests", 0, "lower")
    if ROSE in rounds:
        stretch = statistics.median(ratios(rounds, ROSE, SOLO, mean_tpot_ms))
        report.claim(f"{load}: mean TPOT, rose / solo", stretch, "x", 1.3, "lower")
    if ROSE in rounds and not report.quick:
        # By round, because a machine's own speed may change between rounds.
        ttfts_ms = ([values_ms([one], LATENCIES["TTFT"]) for one in rounds[name]] for name in (ROSE, SOLO))
        pairs_ms = zip(*([quantile(values, 0.99) for values in by_round] for by_round in ttfts_ms), strict=True)
        later_ms = statistics.median(lent - _TTFT_RATIO * alone for lent, alone in pairs_ms)
        report.claim(f"{load}: TTFT p99, rose less {_TTFT_RATIO} solo", later_ms, "ms", _TTFT_MARGIN_MS, "lower")
    if tokens := ratios(rounds, ROSE_SLACK, SHARE_ALL, lambda one: one.tokens_per_s):
        report.claim(f"{load}: rollout tokens, rose_slack / share_all", statistics.median(tokens), "x", 0.5, "higher")


def round_figures(one: Round, budgets: Budgets) -> dict[str, object]:
    latencies = {
        f"{name.lower()}_ms": {
            f"p{share * 100:g}": round(quantile(values_ms([one], latency), share), 2) for share in QUANTILES
        }
        for name, latency in LATENCIES.items()
    }
    return {
        "round": one.number,
        "policy": one.policy,
        "requests": len(one.requests),
        **latencies,
        "over_budget": over_budget(one, budgets),
        "failures": sorted(
            request.reason or "not completed" for request in one.requests if request.outcome != "completed"
        ),
        "device": one.device,
        "rollout": {**one.rollout, "tokens": one.tokens, "tokens_per_s": round(one.tokens_per_s, 1)},
        "lost_spans": one.lost_spans,
    }
