"""May a rollout step run now on a device that serves? Serving first, always.

Two limits hold for every serving request. *Slack* says when a request is broken: prefill slack = (arrival + TTFT
budget) - now - T_prefill(all that waits), decode slack = (last token + TPOT budget) - now - T_prefill(all that waits)
- T_decode(batch). A rollout step is admitted only if every slack stays positive after the time that it is predicted to
keep the device once serving wants it, and the next serving request, as large as the configured largest, would still
meet its TTFT budget if it came just as the step began. That time is the step's own where it runs to its end, and a
layer's where it gives way between layers.

*Regret* says what lending costs: the time that rollouts had on the device since a request arrived may be at most a
share of what serving alone would have taken over it until then. Where no request lives, the same holds for the next
one: half of what it would wait for a running step to give way is what it is expected to wait. A step for which that is
several times the share is held until it meets that many times fewer of the next requests.

Predictions come from steps that ran; a time that nobody knows admits nothing beside a serving request. Where none lives
and serving has served nobody yet, its budget is taken for what its prefills take.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

#: How long a prediction about the next request alone may hold a step beside which nobody is served, at most.
PROBE_AFTER_NS = 2_000_000_000
#: Of the regret share, what steps admitted beside a living request may use. The rest is for what no prediction sees:
#: caches that are cold, and a step that gives way a layer late.
REGRET_SPENT_SHARE = 0.5


class Hold(IntEnum):
    """Why a rollout step was not admitted. The numbers are stable: they travel through the arbiter page."""

    NONE = 0
    NO_LEASE = 1
    SERVING_STEP = 2
    PREFILL_SLACK = 3
    DECODE_SLACK = 4
    NEXT_REQUEST = 5
    COMPUTE_SHARE = 6
    KV_BUDGET = 7
    REGRET = 8
    UNKNOWN_TIMES = 9
    NO_SERVING = 10
    POLICY = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingLoad:
    """What the serving engine is doing. Times are nanoseconds, monotonic where they are moments; None is unknown."""

    #: It has a step in progress or a request that waits for one.
    wanted: bool
    waiting: int
    #: T_prefill of all waiting requests together, as the serving engine predicts it.
    waiting_prefill_ns: int | None
    earliest_arrival_ns: int
    running: int
    #: When the running request that has waited longest for a token got its last one.
    oldest_token_ns: int
    #: T_decode of the running batch.
    decode_ns: int | None
    #: T_prefill of the largest request that the configuration promises room for, and of a usual one.
    largest_prefill_ns: int | None
    usual_prefill_ns: int | None
    #: Device time that rollouts may still take before some living request has been delayed by more than its share,
    #: as of when rollouts had taken `worked_ns` in all.
    regret_room_ns: int
    worked_ns: int
    #: Requests that ended since the engine started; those that missed a budget and would have without lending, and
    #: those that missed it because of lending.
    finished: int
    late_alone: int
    late_by_lending: int


@dataclass(frozen=True, slots=True)
class Budgets:
    """Latency promised to serving requests, in nanoseconds."""

    ttft_ns: int
    tpot_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseTerms:
    """A rollout engine's permission, as it stands on the arbiter page. `expires_ns` is monotonic; 0 is no lease.

    `policy` is the number of the policy in `rose.runtime.policy.policies.NAMES` that the engine decides by.
    """

    number: int = 0
    expires_ns: int = 0
    compute_share: float = 0.0
    kv_budget_tokens: int = 0
    regret_share: float = 0.0
    frozen: bool = False
    policy: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """What is known when a rollout step asks to run."""

    load: ServingLoad | None
    budgets: Budgets | None
    lease: LeaseTerms
    #: How long serving would wait for the step to give way, as predicted. None: too few steps like it ran yet.
    preempt_ns: int | None
    #: How long the step would keep the device if it ran to its end, as predicted.
    step_ns: int | None
    #: KV slots that rollouts would hold after the step.
    kv_tokens: int
    #: Share of the last second that rollouts worked, and device time they took in all.
    busy_share: float
    worked_ns: int
    #: How long the step was held so far.
    held_ns: int
    now_ns: int


@dataclass(frozen=True, slots=True)
class Decision:
    admitted: bool
    hold: Hold = Hold.NONE
    #: The smallest slack left after the step, in nanoseconds; meaningful when the decision was about slack.
    slack_ns: int = 0


def prefill_slack_ns(load: ServingLoad, budgets: Budgets, now_ns: int) -> int | None:
    """Slack of the oldest waiting request; None when none waits."""
    if load.waiting == 0:
        return None
    return load.earliest_arrival_ns + budgets.ttft_ns - now_ns - (load.waiting_prefill_ns or 0)


def decode_slack_ns(load: ServingLoad, budgets: Budgets, now_ns: int) -> int | None:
    """Slack of the running request that has waited longest for a token, prefills going first; None when none runs."""
    if load.running == 0:
        return None
    ahead_ns = (load.waiting_prefill_ns or 0) + (load.decode_ns or 0)
    return load.oldest_token_ns + budgets.tpot_ns - now_ns - ahead_ns


def attainable(load: ServingLoad, budgets: Budgets) -> bool:
    """Whether serving alone is predicted to meet the TTFT budget of the largest request it promises room for."""
    return load.largest_prefill_ns is None or load.largest_prefill_ns < budgets.ttft_ns


def room_ns(*, solo_ns: int, lent_ns: int, share: float) -> int:
    """Device time that rollouts may still take from one request: `share` of what serving alone takes over it until
    its next token, `solo_ns`, less what they took since it arrived, `lent_ns`."""
    return int(share * REGRET_SPENT_SHARE * solo_ns) - lent_ns


def admit(facts: StepFacts) -> Decision:
    """Decide on one rollout step by slack and by regret."""
    load, budgets, lease = facts.load, facts.budgets, facts.lease
    if lease.expires_ns <= facts.now_ns:
        return Decision(False, Hold.NO_LEASE)
    if load is None or budgets is None:
        return Decision(False, Hold.NO_SERVING)
    if load.wanted:
        return Decision(False, Hold.SERVING_STEP)
    if facts.kv_tokens > lease.kv_budget_tokens:
        return Decision(False, Hold.KV_BUDGET)
    if facts.busy_share > lease.compute_share:
        return Decision(False, Hold.COMPUTE_SHARE)
    alone = load.waiting == 0 and load.running == 0
    if not alone and _unknown(load):
        return Decision(False, Hold.UNKNOWN_TIMES)
    if facts.preempt_ns is None:
        # The first steps of their sort: they give way like any other, and only they can tell how long such steps are.
        if not alone:
            return Decision(False, Hold.UNKNOWN_TIMES)
        return Decision(True) if attainable(load, budgets) else Decision(False, Hold.NEXT_REQUEST)
    decision = _by_slack(load, budgets, facts.preempt_ns, facts.now_ns)
    if decision.admitted:
        decision = _by_regret(load, facts, alone, decision)
    about_the_next = decision.hold in (Hold.NEXT_REQUEST, Hold.REGRET) and attainable(load, budgets)
    if about_the_next and alone and facts.held_ns >= _probe_after_ns(decision.hold, facts, load):
        # One slow moment can make a step look as if it never fitted, and then none would run that could show otherwise.
        return Decision(True, Hold.NONE, decision.slack_ns)
    return decision


def _probe_after_ns(hold: Hold, facts: StepFacts, load: ServingLoad) -> int:
    """How long a step is held that only the next request speaks against.

    One that would cost it k times its share may have the device for 1/k of the time: of the requests that come, it then
    meets 1/k, and over all of them the share is kept.
    """
    expected_ns, room = _next_regret(load, facts)
    if hold is not Hold.REGRET or room <= 0:
        return PROBE_AFTER_NS
    step_ns = facts.step_ns or facts.preempt_ns or 0
    return min(PROBE_AFTER_NS, -(-step_ns * (expected_ns - room) // room))


def _unknown(load: ServingLoad) -> bool:
    return (
        load.largest_prefill_ns is None
        or (load.waiting > 0 and load.waiting_prefill_ns is None)
        or (load.running > 0 and load.decode_ns is None)
    )


def _by_slack(load: ServingLoad, budgets: Budgets, preempt_ns: int, now_ns: int) -> Decision:
    slack = budgets.ttft_ns - preempt_ns - (load.waiting_prefill_ns or 0) - (load.largest_prefill_ns or 0)
    if slack <= 0:
        return Decision(False, Hold.NEXT_REQUEST, slack)
    for hold, left in (
        (Hold.PREFILL_SLACK, prefill_slack_ns(load, budgets, now_ns)),
        (Hold.DECODE_SLACK, decode_slack_ns(load, budgets, now_ns)),
    ):
        if left is not None:
            slack = min(slack, left - preempt_ns)
            if slack <= 0:
                return Decision(False, hold, slack)
    return Decision(True, Hold.NONE, slack)


def _by_regret(load: ServingLoad, facts: StepFacts, alone: bool, admitted: Decision) -> Decision:
    if alone:
        expected_ns, room = _next_regret(load, facts)
    else:
        # Serving goes on with its next step right away, so what it waits for is the step's giving way.
        expected_ns, room = facts.preempt_ns or 0, load.regret_room_ns - (facts.worked_ns - load.worked_ns)
    return admitted if expected_ns <= room else Decision(False, Hold.REGRET, admitted.slack_ns)


def _next_regret(load: ServingLoad, facts: StepFacts) -> tuple[int, int]:
    """What the next request is expected to wait for a step to give way, and its share of what it takes alone.

    Of an engine that has served nobody yet its budget is known: one that nobody uses would never be lent otherwise.
    """
    assert facts.budgets is not None, "nothing is admitted without"
    known = (load.usual_prefill_ns, load.largest_prefill_ns, facts.budgets.ttft_ns)
    usual_ns = next(ns for ns in known if ns is not None)
    return (facts.preempt_ns or 0) // 2, int(facts.lease.regret_share * usual_ns)


def late_by(*, took_ns: int, lent_ns: int, budget_ns: int) -> str | None:
    """Who made a request late: "alone" if it would have been without the `lent_ns` that rollouts had meanwhile,
    "lending" if not; None if it was in time."""
    if took_ns <= budget_ns:
        return None
    return "alone" if took_ns - lent_ns > budget_ns else "lending"


def admit_any(facts: StepFacts) -> Decision:
    """The guard of a shared device that has none: whatever a lease allows."""
    granted = facts.lease.expires_ns > facts.now_ns
    return Decision(granted, Hold.NONE if granted else Hold.NO_LEASE)


def admit_share(facts: StepFacts) -> Decision:
    """A fixed share of the time and of the memory, whatever serving does meanwhile."""
    lease = facts.lease
    if lease.expires_ns <= facts.now_ns:
        return Decision(False, Hold.NO_LEASE)
    if facts.kv_tokens > lease.kv_budget_tokens:
        return Decision(False, Hold.KV_BUDGET)
    if facts.busy_share > lease.compute_share:
        return Decision(False, Hold.COMPUTE_SHARE)
    return Decision(True)


def admit_none(facts: StepFacts) -> Decision:
    """Serving alone."""
    return Decision(False, Hold.NO_LEASE if facts.lease.expires_ns <= facts.now_ns else Hold.POLICY)
