"""Decides whether a rollout step may run now on a device that serves.

First tokens are due at arrival + TTFT budget, later tokens at previous token + TPOT budget. *Slack* limits lateness:

    prefill slack = earliest due first token - now - T_prefill(waiting requests)
    decode slack = earliest due next token - now - T_prefill(waiting requests) - T_decode(batch)

Slack must stay positive even if serving first waits until a rollout step yields. The largest next request must also
meet the smallest TTFT budget.

*Regret* limits how much slower requests become. From a request's arrival on, rollouts may use the device only for a
share of the time that the request takes alone. While there is no request, the expected wait of the next request is
limited. It is half of the time that a running step takes to yield. If the expected wait is k times the allowed wait,
rollout steps run only 1/k of the time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

PROBE_AFTER_NS = 2_000_000_000
CREDIT_LAYERS = 2  # A step begins on credit if this many of its layers fit.
REGRET_SPENT_SHARE = 0.5  # Part of the regret share beside a request. The rest covers cold caches and late yields.


class Hold(IntEnum):
    """Why a rollout step was not admitted. The arbiter page stores these numbers."""

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
    # The reasons why nothing may run beside serving's steps, other than slack and times.
    STRETCH = 12
    SERVING_MEMORY = 13
    INTERFERENCE = 14
    CONTROL = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingLoad:
    """The state of the serving engine. Times are nanoseconds, moments are monotonic, and None means unknown."""

    wanted: bool
    waiting: int
    waiting_prefill_ns: int | None  # Predicted T_prefill of all waiting requests together.
    first_token_due_ns: int  # Earliest due first token of a waiting request.
    running: int
    next_token_due_ns: int  # Earliest due next token of a running request.
    decode_ns: int | None
    largest_prefill_ns: int | None  # T_prefill of the largest configured request.
    usual_prefill_ns: int | None  # T_prefill of a usual request.
    ttft_budget_ns: int  # The smallest budget of a possible next request. 0: unknown; nothing is admitted.
    regret_room_ns: int  # Device time left to rollouts before a request exceeds its share.
    worked_ns: int  # Rollouts' device time in all at the time of `regret_room_ns`.
    finished: int  # Requests ended since the start.
    late_alone: int  # Requests late even without lending.
    late_by_lending: int  # Requests late because of lending.


@dataclass(frozen=True, slots=True)
class Budgets:
    ttft_ns: int
    tpot_ns: int
    classes: Mapping[int, "Budgets"] = field(default_factory=dict, kw_only=True)  # By priority.

    def of(self, priority: int | None) -> "Budgets":
        return self if priority is None else self.classes.get(priority, self)

    @property
    def ttft_min_ns(self) -> int:
        return min(one.ttft_ns for one in (self, *self.classes.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseTerms:
    number: int = 0
    expires_ns: int = 0  # Monotonic.
    compute_share: float = 0.0
    kv_budget_tokens: int = 0
    regret_share: float = 0.0
    frozen: bool = False
    policy: int = 0  # Index into `policies.NAMES`.
    stretch: float = 1.0  # How far a token may be stretched; the next field is the share of slack to spend.
    slack_share: float = 0.0

    @property
    def gives_credit(self) -> bool:
        return self.stretch > 1 and self.slack_share > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    load: ServingLoad | None
    lease: LeaseTerms
    preempt_ns: int | None  # Predicted wait of serving for the step to give way; None: unknown.
    step_ns: int | None
    kv_tokens: int
    busy_share: float  # Rollouts' share of the last second.
    worked_ns: int  # Rollouts' device time in all.
    held_ns: int
    now_ns: int
    credit_ns: int = 0  # Work that may run beside serving's steps.
    layer_ns: int = 0  # Time alone of one layer of the step; 0: unknown.
    credit_limit: Hold = Hold.NONE  # The limit of serving's last credit.


@dataclass(frozen=True, slots=True)
class Decision:
    admitted: bool
    hold: Hold = Hold.NONE
    on_credit: bool = False  # Whether it begins beside serving's step.


def attainable(load: ServingLoad) -> bool:
    """Return whether serving, without rollouts, can meet the smallest TTFT budget with its largest request."""
    return (load.largest_prefill_ns or 0) < load.ttft_budget_ns


def room_ns(*, solo_ns: int, lent_ns: int, share: float) -> int:
    """Return for how many more ns rollouts may use the device during a request that takes `solo_ns` alone. In all, they
    may use the part share * REGRET_SPENT_SHARE of this time. They have already used `lent_ns`."""
    return int(share * REGRET_SPENT_SHARE * solo_ns) - lent_ns


def admit(facts: StepFacts) -> Decision:
    load, lease = facts.load, facts.lease
    if lease.expires_ns <= facts.now_ns:
        return Decision(False, Hold.NO_LEASE)
    if load is None:
        return Decision(False, Hold.NO_SERVING)
    if load.wanted and facts.credit_ns < max(1, CREDIT_LAYERS * facts.layer_ns):
        return Decision(False, facts.credit_limit or Hold.SERVING_STEP)
    if facts.kv_tokens > lease.kv_budget_tokens:
        return Decision(False, Hold.KV_BUDGET)
    if facts.busy_share > lease.compute_share:
        return Decision(False, Hold.COMPUTE_SHARE)
    if load.wanted:
        return Decision(True, on_credit=True)
    alone = load.waiting == 0 and load.running == 0
    if not alone and _unknown(load):
        return Decision(False, Hold.UNKNOWN_TIMES)
    if facts.preempt_ns is None:
        if not alone:  # The first steps of a kind: only they can measure its time.
            return Decision(False, Hold.UNKNOWN_TIMES)
        return Decision(True) if attainable(load) else Decision(False, Hold.NEXT_REQUEST)
    hold = _by_slack(load, facts.preempt_ns, facts.now_ns) or _by_regret(load, facts, alone)
    about_the_next = hold in (Hold.NEXT_REQUEST, Hold.REGRET) and attainable(load)
    if about_the_next and alone and facts.held_ns >= _probe_after_ns(hold, facts, load):
        return Decision(True)  # Otherwise one slow measurement could stop such steps.
    return Decision(hold is Hold.NONE, hold)


def _probe_after_ns(hold: Hold, facts: StepFacts, load: ServingLoad) -> int:
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


def _by_slack(load: ServingLoad, preempt_ns: int, now_ns: int) -> Hold:
    ahead_ns = preempt_ns + (load.waiting_prefill_ns or 0)
    slacks_ns = {Hold.NEXT_REQUEST: load.ttft_budget_ns - ahead_ns - (load.largest_prefill_ns or 0)}
    if load.waiting:
        slacks_ns[Hold.PREFILL_SLACK] = load.first_token_due_ns - now_ns - ahead_ns
    if load.running:
        slacks_ns[Hold.DECODE_SLACK] = load.next_token_due_ns - now_ns - ahead_ns - (load.decode_ns or 0)
    return next((hold for hold, slack_ns in slacks_ns.items() if slack_ns <= 0), Hold.NONE)


def _by_regret(load: ServingLoad, facts: StepFacts, alone: bool) -> Hold:
    if alone:
        expected_ns, room = _next_regret(load, facts)
    else:
        expected_ns, room = facts.preempt_ns or 0, load.regret_room_ns - (facts.worked_ns - load.worked_ns)
    return Hold.NONE if expected_ns <= room else Hold.REGRET


def _next_regret(load: ServingLoad, facts: StepFacts) -> tuple[int, int]:
    """Return how long the next request waits until a step yields, in ns: (expected wait, longest allowed wait)."""
    known = (load.usual_prefill_ns, load.largest_prefill_ns, load.ttft_budget_ns)
    usual_ns = next(ns for ns in known if ns is not None)
    return (facts.preempt_ns or 0) // 2, int(facts.lease.regret_share * usual_ns)


def late_by(*, took_ns: int, lent_ns: int, budget_ns: int) -> str | None:
    """Return None if a request is in time, "alone" if it is late even without `lent_ns`, and "lending" otherwise."""
    if took_ns <= budget_ns:
        return None
    return "alone" if took_ns - lent_ns > budget_ns else "lending"


def admit_any(facts: StepFacts) -> Decision:
    granted = facts.lease.expires_ns > facts.now_ns
    return Decision(granted, Hold.NONE if granted else Hold.NO_LEASE)


def admit_share(facts: StepFacts) -> Decision:
    lease = facts.lease
    if lease.expires_ns <= facts.now_ns:
        return Decision(False, Hold.NO_LEASE)
    if facts.kv_tokens > lease.kv_budget_tokens:
        return Decision(False, Hold.KV_BUDGET)
    if facts.busy_share > lease.compute_share:
        return Decision(False, Hold.COMPUTE_SHARE)
    return Decision(True)


def admit_none(facts: StepFacts) -> Decision:
    return Decision(False, Hold.NO_LEASE if facts.lease.expires_ns <= facts.now_ns else Hold.POLICY)
