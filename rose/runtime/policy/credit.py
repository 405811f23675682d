"""Decides how much rollout work may run beside serving's live requests.

*Work* is the time that rollout layers take when they run alone. Work beside a step of serving makes this step longer,
by `factor` times the work. When a step begins, serving grants work = min(slack_share * slack, room) / factor.

*Slack* is how much longer the step may become before a live request misses its latency budget. The largest prompt
that may come now counts as a live request here; it waits for two such steps.

*Room* limits how much longer the tokens of a request may take: room = more * (1 - growth) * alone - factor * work. Here
`alone` is the request's time without rollouts, and `work` is the rollout work beside the request. Both count from the
request's first token. Before this token, the room is 0. Of all live requests, the one with the smallest room decides.

`growth` is the part of a step's time that grows with the number of live requests. It matters because slower requests
stay longer, so that more of them are live at once (Little's law). `more` is stretch - 1, where `stretch` is the lease's
limit. First tokens wait for the longer steps, but may take at most FIRST_TOKEN_STRETCH times as long as alone. If
needed, `more` is lowered to ensure this. Lending cannot stretch a step by more than STRETCH_MAX. If `stretch` is at
least STRETCH_MAX, room has no limit, and only then rollouts work beside prefills and go on when a request arrives.

The factor is fitted to the delays of steps with work beside them. It is at least FACTOR_MIN: what time slices cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import NamedTuple

from rose.runtime.policy.slack import Hold, LeaseTerms
from rose.runtime.policy.steptime import LinearFit

FACTOR_GUESSED = 1.5
FACTOR_MIN = 1.15
STRETCH_MAX = 2.3
FIRST_TOKEN_STRETCH = 1.03  # As predicted; the promise is 1.05 at the 99th percentile.
#: A first token waits at most for the step that runs, its prefill, and the step that is launched behind that.
_FIRST_TOKEN_STEPS = 2
LEARNED_STEPS = 32
CONTROL_EVERY = 32  # In this many steps, two get no credit: the second shows what a step takes alone.
LAYERS_TO_STOP = 2  # A rollout step stops after the running layer and the queued one.
SLICE_NS = 6_000_000  # How long a process may keep a core after it should have stopped (a GPU: 2 ms).
_OVERRUN_SPREADS = 3.0
_OVERRUNS_MAX = 3  # If so many of the last ten steps had more delay than predicted, credit is halved, then stopped.
_OVERRUNS_SEEN = (1 << 10) - 1
_CLEAN_STEPS = 100  # After so many steps without a cut the credit is restored.
_PAUSE_NS = 1_000_000_000
_PAUSE_NS_MAX = 60_000_000_000
_SCALE = (1e-6,)


@dataclass(frozen=True, slots=True)
class Interference:
    fit: LinearFit = field(default_factory=lambda: LinearFit.prior(_SCALE))
    overruns: int = 0  # One bit per step; the newest step has the lowest bit.
    clean: int = 0
    halved: bool = False
    paused_until_ns: int = 0
    pause_ns: int = _PAUSE_NS

    @property
    def factor(self) -> float:
        if self.fit.count < LEARNED_STEPS:
            return FACTOR_GUESSED
        mean, worked = self.fit.weights[0] * _SCALE[0], sqrt(self.fit.gram[0][0]) / _SCALE[0]
        return max(FACTOR_MIN, mean + 2 * self.fit.spread_ns / worked)

    def observe(self, work_ns: int, delay_ns: int, spread_ns: float, now_ns: int) -> Interference:
        """Learn from a step: it took `delay_ns` (± `spread_ns`) longer than predicted, beside `work_ns` of rollouts."""
        fit = self.fit.observe((work_ns,), delay_ns)
        overrun = delay_ns > self.factor * work_ns + _OVERRUN_SPREADS * spread_ns + SLICE_NS
        overruns = (self.overruns << 1 | overrun) & _OVERRUNS_SEEN
        known = replace(self, fit=fit, overruns=overruns, clean=self.clean + 1)
        if overruns.bit_count() >= _OVERRUNS_MAX:
            known = replace(known, overruns=0, clean=0, halved=True)
            if self.halved:
                pause_ns = min(2 * self.pause_ns, _PAUSE_NS_MAX)
                known = replace(known, paused_until_ns=now_ns + self.pause_ns, pause_ns=pause_ns)
        elif known.clean >= _CLEAN_STEPS:
            known = replace(known, clean=0, halved=False, pause_ns=_PAUSE_NS)
        return known


class LiveRequest(NamedTuple):  # A large batch makes many in each step.
    elapsed_ns: int | None  # Since its first token; None before it.
    lent_ns: int  # Time of rollouts while serving rested, since then.
    work_ns: int
    due_ns: int  # When the step must end, so that its next token is in time.


@dataclass(frozen=True, kw_only=True, slots=True)
class CreditFacts:
    """Facts at the start of a step of serving, in ns; moments are monotonic."""

    lease: LeaseTerms
    ttft_budget_ns: int  # The smallest budget that a request may have if it comes now.
    live: Sequence[LiveRequest]  # In this decode, or in this prefill and the decode after it; none: no credit.
    step_ns: int | None  # The predicted step.
    fewer_decode_ns: int | None  # The predicted step with 1/stretch of the requests.
    spread_ns: float  # The usual error of `step_ns`.
    largest_prefill_ns: int | None
    usual_prefill_ns: int | None
    layer_ns: int  # The time that a layer of the rollouts' next step takes alone; 0: unknown.
    room_in_memory: bool
    others: bool  # Whether a third process computes on the device.
    control: bool  # Whether this step measures its time alone.
    interference: Interference
    now_ns: int


@dataclass(frozen=True, slots=True)
class Credit:
    work_ns: int
    until_ns: int  # The work must begin before.
    limit: Hold  # The rule that allows no more.


def share_of_busy(stretch: float, slack_share: float) -> float:
    """Return the largest share of a device that rollout work can take beside a serving engine that is never idle."""
    return 1 - 1 / min(stretch, STRETCH_MAX) if slack_share > 0 else 0.0


def stops_for_arrivals(lease: LeaseTerms) -> bool:
    """Return whether an arrival ends the credit. Without a limit of stretch, the slack has counted the arrival."""
    return lease.stretch < STRETCH_MAX


def room_in_memory(*, used: int, total: int, stretch: float) -> bool:
    """Return whether serving's KV pool has room for more requests at once. `used` of `total` tokens are in use. If
    requests take `stretch` times as long, `stretch` times as many are alive together (Little's law)."""
    return used * min(stretch, STRETCH_MAX) <= total


def grant(facts: CreditFacts) -> Credit:
    if (refused := _refused(facts)) is not None:
        return Credit(0, 0, refused)
    alone_ns, prompt_alone_ns = facts.step_ns, facts.largest_prefill_ns
    assert alone_ns is not None, "refused otherwise"
    assert prompt_alone_ns is not None, "refused otherwise"
    margin_ns = round(_OVERRUN_SPREADS * facts.spread_ns) + LAYERS_TO_STOP * facts.layer_ns
    token_ns = min(one.due_ns for one in facts.live) - facts.now_ns - alone_ns - margin_ns
    prompt_ns = (facts.ttft_budget_ns - prompt_alone_ns) // _FIRST_TOKEN_STEPS - alone_ns - margin_ns
    factor = facts.interference.factor
    room_ns = inf
    if facts.lease.stretch < STRETCH_MAX:
        more = _more_of_step(facts, alone_ns)
        room_ns = min(_room_ns(one, alone_ns, more, factor) for one in facts.live)
    share = facts.lease.slack_share / (2 if facts.interference.halved else 1)
    delay_ns, limit = min(
        (share * token_ns, Hold.DECODE_SLACK), (share * prompt_ns, Hold.NEXT_REQUEST), (room_ns, Hold.STRETCH)
    )
    work_ns = max(0, int(delay_ns / factor))
    return Credit(work_ns, facts.now_ns + round(2 * (alone_ns + factor * work_ns)) if work_ns else 0, limit)


def _refused(facts: CreditFacts) -> Hold | None:
    lease = facts.lease
    if lease.expires_ns <= facts.now_ns:
        return Hold.NO_LEASE
    if not lease.gives_credit or not facts.live:
        return Hold.SERVING_STEP
    if facts.step_ns is None or facts.largest_prefill_ns is None:
        return Hold.UNKNOWN_TIMES
    if not facts.room_in_memory:
        return Hold.SERVING_MEMORY
    if facts.others or facts.now_ns < facts.interference.paused_until_ns:
        return Hold.INTERFERENCE
    return Hold.CONTROL if facts.control else None


def _more_of_step(facts: CreditFacts, step_ns: int) -> float:
    """Return by which part of its time rollouts may prolong a step: more * (1 - growth), as the module defines them."""
    step_ns, more = max(1, step_ns), facts.lease.stretch - 1
    grows_ns = max(0, step_ns - (facts.fewer_decode_ns or 0)) * (1 + more) / more
    # A request arrives in the middle of a step, on average, and half of what rollouts took in it is a wait.
    later_ns = FIRST_TOKEN_STRETCH * _FIRST_TOKEN_STEPS * grows_ns + max(0, step_ns - grows_ns) / 2
    first_ns = (facts.usual_prefill_ns or 0) + _FIRST_TOKEN_STEPS * step_ns
    return min(more, (FIRST_TOKEN_STRETCH - 1) * first_ns / later_ns) * (1 - grows_ns / step_ns)


def _room_ns(request: LiveRequest, step_ns: int, more: float, factor: float) -> float:
    if request.elapsed_ns is None:
        return 0.0
    delayed_ns = factor * request.work_ns
    alone_ns = max(0.0, request.elapsed_ns - request.lent_ns - delayed_ns) + step_ns
    return more * alone_ns - delayed_ns
