"""One round: a policy in force, the same arrivals as in the others, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from rose.accept.coserve.host import ROLLOUT, SERVING, Host
from rose.accept.coserve.keeper import POLICIES, Keeper
from rose.accept.coserve.traffic import Arrivals
from rose.accept.coserve.worker import Worker
from rose.clock import monotonic_ns
from rose.runtime.coserving.accounts.slices import slice_time
from rose.runtime.coserving.page import Span, SpanRecord
from rose.runtime.engines import models
from rose.runtime.policy.slack import Budgets

#: Rollouts begin this long before the round, so that it begins with the engine at work.
_RAMP_S = 1.0


class DeviceTime(TypedDict):
    """Nanoseconds of a round: serving, rollout, headroom and idle add up to its length.

    These are `slice_time`'s buckets, but for the time in which both engines were in a step: a step that waits for a
    shared core is still open, so this time is split by the share of the core that each engine then gets.
    """

    length_ns: int
    serving_ns: int
    rollout_ns: int
    headroom_ns: int
    idle_ns: int
    #: Rollouts' part by the rule of `slice_time`.
    rollout_by_halves_ns: int
    #: Time in which both were in a step.
    overlap_ns: int
    rollout_steps: int
    serving_steps: int


def device_time(spans: Sequence[SpanRecord], t0_ns: int, t1_ns: int, *, core_share: float = 0.5) -> DeviceTime:
    """Account for [t0_ns, t1_ns). `core_share` is rollouts' share of the core while both engines are in a step."""
    part = slice_time(spans, t0_ns, t1_ns)
    buckets = part.by_bucket
    rollout = clipped(spans, Span.ROLLOUT, t0_ns, t1_ns)
    rollout_ns = sum(end - start for start, end in rollout) - round(part.overlap_ns * (1 - core_share))
    return DeviceTime(
        length_ns=t1_ns - t0_ns,
        serving_ns=buckets["serving"] + buckets["rollout"] - rollout_ns,
        rollout_ns=rollout_ns,
        headroom_ns=buckets["headroom"],
        idle_ns=buckets["idle"],
        rollout_by_halves_ns=buckets["rollout"],
        overlap_ns=part.overlap_ns,
        rollout_steps=len(rollout),
        serving_steps=len(clipped(spans, Span.SERVING, t0_ns, t1_ns)),
    )


def clipped(spans: Sequence[SpanRecord], kind: Span, t0_ns: int, t1_ns: int) -> list[tuple[int, int]]:
    """Return the parts of spans of one kind inside [t0_ns, t1_ns), in order."""
    parts = [(max(span.start_ns, t0_ns), min(span.end_ns, t1_ns)) for span in spans if span.kind is kind]
    return sorted((start, end) for start, end in parts if start < end)


def harvest_share(solo: DeviceTime, lent: DeviceTime) -> float:
    """Return rollouts' device time over the time that serving alone left idle."""
    return lent["rollout_ns"] / (solo["length_ns"] - solo["serving_ns"])


@dataclass(frozen=True, slots=True)
class Served:
    """One serving request as its client saw it. Times in nanoseconds; None where it did not come to that."""

    completed: bool
    ttft_ns: int | None
    tpot_ns: int | None
    tpot_max_ns: int | None
    send_delay_ns: int
    reason: str | None

    @classmethod
    def of_event(cls, request: dict[str, Any]) -> Served:
        """Return a `Request` event as a worker reported it."""
        return cls(
            completed=request["outcome"] == "completed",
            ttft_ns=request["ttft_ns"],
            tpot_ns=request["tpot_mean_ns"],
            tpot_max_ns=request["tpot_max_ns"],
            send_delay_ns=request["send_delay_ns"],
            reason=request["reason"],
        )

    def within(self, budgets: Budgets) -> bool:
        """Whether it kept both promises; a request that failed kept none."""
        if not self.completed or self.ttft_ns is None:
            return False
        return self.ttft_ns <= budgets.ttft_ns and (self.tpot_ns is None or self.tpot_ns <= budgets.tpot_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one round of one policy measured in [t0_ns, t1_ns), monotonic."""

    policy: str
    number: int
    t0_ns: int
    t1_ns: int
    requests: tuple[Served, ...]
    spans: tuple[SpanRecord, ...]
    #: (monotonic ns, requests that waited or ran in the rollout engine).
    samples: tuple[tuple[int, int], ...] = ()
    #: What rollouts made, over `rollout_s`: the round and the ramp before it.
    rollout: dict[str, Any]
    rollout_s: float
    lost_spans: int

    @property
    def device(self) -> DeviceTime:
        """Where the device's time went."""
        return device_time(self.spans, self.t0_ns, self.t1_ns, core_share=POLICIES[self.policy].core_share)

    @property
    def tokens_per_s(self) -> float:
        """Rollout tokens a second."""
        return float(self.rollout.get("tokens", 0)) / self.rollout_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What all rounds have in common."""

    host: Host
    serving: Worker
    rollout: Worker
    turns: int
    budgets: Budgets
    max_prompt_tokens: int

    def keeper(self, policy: str) -> Keeper:
        """Place the rollout engine as the policy says, and return what keeps its lease."""
        host, way = self.host, POLICIES[policy]
        host.adopt(way)
        return Keeper(host.page, host.memory, way, self.budgets, self.max_prompt_tokens, host.rollout_tokens)

    def play(self, policy: str, number: int, arrivals: Arrivals, seconds: float, seed: int) -> Round:
        """Play a round; `seed` is that of the prompts' text. Rollouts end with it, serving's last requests after it."""
        lends = POLICIES[policy].lends
        keeper = self.keeper(policy)
        rollout: dict[str, Any] = {}
        keeper.start()
        try:
            rollouts_began_ns = monotonic_ns()
            if lends:
                self.rollout.tell(url=self.host.engines[ROLLOUT].url, turns=self.turns, seed=seed)
            time.sleep(_RAMP_S)
            self.serving.tell(**serving_command(self.host.engines[SERVING].url, arrivals, seed))
            t0_ns = int(self.serving.hear()["began_ns"])
            t1_ns = t0_ns + round(seconds * 1e9)
            time.sleep(max(0.0, (t1_ns - monotonic_ns()) / 1e9))
            rollouts_ended_ns = monotonic_ns()
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
            requests=tuple(map(Served.of_event, requests)),
            spans=tuple(keeper.spans),
            samples=tuple(keeper.samples),
            rollout=rollout,
            rollout_s=(rollouts_ended_ns - rollouts_began_ns) / 1e9,
            lost_spans=keeper.lost_spans,
        )


def serving_command(url: str, arrivals: Arrivals, seed: int) -> dict[str, object]:
    """Return the command of a round for the serving worker."""
    return {"url": url, "model": models.SMOLLM2, "seed": seed, **asdict(arrivals)}


def order(policies: Sequence[str], number: int) -> list[str]:
    """Return the order of a round: rotated by one each time, so that no policy always follows the same one."""
    start = number % len(policies)
    return [*policies[start:], *policies[:start]]
