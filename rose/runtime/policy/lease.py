"""The state machine of a lease. If lending makes serving late, the lease is taken back step by step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal

from rose.runtime.policy.kv import KvMemory, initial_budget_bytes
from rose.runtime.policy.lending import Reason, at_work
from rose.runtime.policy.serving import ServingHistory
from rose.runtime.policy.slack import ServingLoad

Ending = Literal["released", "preempted", "expired"]
Action = Literal["grant", "renew", "throttle", "shrink", "restore", "cut", "release", "preempt", "expire"]

LATE_ALONE_SHARE_MAX = 0.05  # If serving is late more often than this without lending, nothing is lent.
ACTIVATION_NS_MAX = 5_000_000_000
_RENEWED_SHARE_MIN = 1 / 8  # A renewal moves the expiry by at least this share of the time to live: answers come often.


#: Whether to borrow a device for `wanted_ns`, if `idle_share` of its time is idle and a switch takes `switch_ns`.
Borrow = Callable[[int, float, int], bool]


def worth_borrowing(wanted_ns: int, idle_share: float, switch_ns: int) -> bool:
    return wanted_ns * idle_share > switch_ns


def always_borrow(wanted_ns: int, _idle_share: float, _switch_ns: int) -> bool:
    return wanted_ns > 0


def never_borrow(_wanted_ns: int, _idle_share: float, _switch_ns: int) -> bool:
    return False


class Level(IntEnum):
    """How much of a lease was taken back. If serving is late even at the last level, the lease ends."""

    FULL = 0
    THROTTLED = 1  # Half the shares of compute, regret and slack.
    SHRUNK = 2  # Also half the KV budget.


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRules:
    ttl_ns: int
    compute_share: float
    regret_share: float
    borrow: Borrow
    guards: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseState:
    """The current or the last lease, with times in monotonic ns. Number 0 means that there was no lease yet."""

    number: int = 0
    ended: Ending | None = "released"
    granted_ns: int = 0
    expires_ns: int = 0
    step: int | None = None
    kv_budget_bytes: int = 0
    kv_budget_full_bytes: int = 0  # The budget before lateness shrank it.
    compute_share: float = 0.0
    regret_share: float = 0.0
    frozen: bool = False
    level: Level = Level.FULL
    cuts_taken: int = 0
    late_seen: int = 0  # It counts again once `settled_at` requests finished; earlier ones were in flight.
    settled_at: int = 0
    clean_since_ns: int = 0
    in_time_at_end: int = 0  # Serving's requests that had finished in time when the lease ended.

    def __post_init__(self) -> None:
        assert self.kv_budget_bytes <= self.kv_budget_full_bytes, "a budget never exceeds what was granted"

    @property
    def in_force(self) -> bool:
        return self.ended is None


@dataclass(frozen=True, slots=True)
class EngineCut:
    count: int = 0  # Number of cuts so far.
    lease_number: int = 0
    kv_budget_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseFacts:
    rules: LeaseRules
    state: LeaseState
    answered_ns: int  # When the gateway last answered; 0: never.
    wanted_ns: int  # Device time that the gateway wanted then.
    lease_named: bool  # Whether the gateway renewed this lease then.
    step: int | None = None  # The RL step that the gateway named then.
    engine_fault: str | None = None
    engine_memory: Literal["present", "moving", "away"] = "present"
    serving_fault: str | None = None  # Why no serving engine can share; None: one can.
    load: ServingLoad | None
    history: ServingHistory
    memory: KvMemory
    idle_share: float
    switch_ns: int
    serving_ns: int = 0  # Serving's work in the last `observed_ns`.
    observed_ns: int = 0
    cut: EngineCut = EngineCut()
    withheld: bool = False
    drained: bool = False


WITHHELD = "leases are withheld at random for a while, to measure what lending costs serving"
DRAINED = "the device is drained: its owner lends nothing of it"


@dataclass(frozen=True, slots=True)
class Change:
    action: Action
    reason: str | None
    state: LeaseState


def next_change(facts: LeaseFacts, now_ns: int) -> Change | None:
    """Return the change that is due now, or None. Call this again after each change."""
    if not facts.state.in_force:
        # A cut may be seen after its lease's end; it still binds the next lease of the term.
        return _cut(facts, now_ns) or _grant(facts, now_ns)
    for rule in (_end, _cut, _lateness, _renew):
        if (change := rule(facts, now_ns)) is not None:
            return change
    return None


def refusal(facts: LeaseFacts, now_ns: int) -> Reason | None:
    """Return why no lease can be granted, or None if one can."""
    rules, load = facts.rules, facts.load
    if facts.withheld:
        return Reason("withheld", WITHHELD)
    if facts.serving_fault is not None:
        return Reason("no_serving", facts.serving_fault)
    if facts.engine_fault is not None:
        return Reason("engine_away", facts.engine_fault)
    if facts.engine_memory == "moving":
        return Reason("activation", "the rollout engine's memory is on its way to the device or from it")
    if load is None:
        return Reason("no_serving", "the serving engine has not said what it is doing")
    if rules.guards and (reason := _guarded(facts, load, now_ns)) is not None:
        return reason
    if not rules.borrow(facts.wanted_ns, facts.idle_share, facts.switch_ns):
        if rules.borrow is never_borrow:
            return Reason("policy", "the fleet file's `coserving.policy` lends nothing")
        return Reason("serving_busy", f"{at_work(facts.serving_ns, facts.observed_ns)}: too little is left to lend")
    if _budget_bytes(facts) <= 0:
        return Reason("kv_memory", "serving uses its KV memory: none is left to lend")
    return None


def _guarded(facts: LeaseFacts, load: ServingLoad, now_ns: int) -> Reason | None:
    share = facts.history.late_alone_share
    if share > LATE_ALONE_SHARE_MAX:
        return Reason(
            "serving_late",
            f"serving misses its latency budgets for {share:.0%} of requests without lending: `ttft_budget_ms` and "
            "`tpot_budget_ms` of the fleet file set them",
        )
    if 0 < load.ttft_budget_ns <= (load.largest_prefill_ns or 0):  # Then the gate admits nothing.
        return Reason(
            "budget_unreachable",
            f"serving needs {(load.largest_prefill_ns or 0) / 1e6:,.0f} ms for a prompt of `max_prompt_tokens`; the "
            f"smallest `ttft_budget_ms` is {load.ttft_budget_ns / 1e6:,.0f} ms: raise that budget, or lower "
            "`max_prompt_tokens`",
        )
    in_time_again = _in_time(load) != facts.state.in_time_at_end  # A restarted engine counts from 0.
    rested = facts.history.idle_ns(now_ns) >= facts.rules.ttl_ns
    if facts.state.ended == "preempted" and not in_time_again and not rested:
        return Reason("serving_recovers", "serving has finished no request in time since the last lease was taken back")
    return None


def _budget_bytes(facts: LeaseFacts) -> int:
    return initial_budget_bytes(facts.memory if facts.rules.guards else replace(facts.memory, serving_tokens=0))


def released(state: LeaseState, reason: str) -> Change:
    assert state.in_force, f"lease {state.number} is not in force"
    return Change("release", reason, replace(state, ended="released"))


def _answer_holds(facts: LeaseFacts, now_ns: int) -> bool:
    return facts.answered_ns > 0 and now_ns < facts.answered_ns + facts.rules.ttl_ns


def _in_time(load: ServingLoad | None) -> int:
    return 0 if load is None else load.finished - load.late_alone - load.late_by_lending


def _grant(facts: LeaseFacts, now_ns: int) -> Change | None:
    rules, last, load = facts.rules, facts.state, facts.load
    if not _answer_holds(facts, now_ns) or facts.wanted_ns <= 0 or refusal(facts, now_ns) is not None:
        return None
    assert load is not None, "refused otherwise"
    budget = full = _budget_bytes(facts)
    # A new lease does not undo cuts after lateness or pressure.
    level = last.level if last.ended == "preempted" and rules.guards else Level.FULL
    if level is Level.SHRUNK:
        budget //= 2
    frozen = last.frozen and (now_ns < last.expires_ns or (last.step is not None and last.step == facts.step))
    if frozen:
        budget = full = min(budget, last.kv_budget_bytes)
    if budget <= 0:
        return None
    state = LeaseState(
        number=last.number + 1,
        ended=None,
        granted_ns=now_ns,
        expires_ns=facts.answered_ns + rules.ttl_ns,
        step=facts.step,
        kv_budget_bytes=budget,
        kv_budget_full_bytes=full,
        frozen=frozen,
        cuts_taken=facts.cut.count,
        late_seen=load.late_by_lending,
        settled_at=load.finished,
        clean_since_ns=now_ns,
    )
    return Change("grant", None, _at_level(state, rules, level))


def share_at(share: float, level: Level) -> float:
    return share / 2 if level >= Level.THROTTLED else share


def _renew(facts: LeaseFacts, now_ns: int) -> Change | None:
    if not (_answer_holds(facts, now_ns) and facts.wanted_ns > 0 and facts.lease_named):
        return None
    expires_ns = facts.answered_ns + facts.rules.ttl_ns
    if expires_ns - facts.state.expires_ns < facts.rules.ttl_ns * _RENEWED_SHARE_MIN:
        return None
    return Change("renew", None, replace(facts.state, expires_ns=expires_ns))


def _end(facts: LeaseFacts, now_ns: int) -> Change | None:
    state = replace(facts.state, in_time_at_end=_in_time(facts.load))
    if state.expires_ns <= now_ns:
        reason = "not renewed: the gateway was away, or no longer asked for it"
        return Change("expire", reason, replace(state, ended="expired"))
    if facts.withheld:
        return released(state, WITHHELD)
    if (fault := facts.engine_fault or facts.serving_fault) is not None:
        return released(state, fault)
    if facts.engine_memory != "present" and now_ns - state.granted_ns >= ACTIVATION_NS_MAX:
        return released(state, "the rollout engine's memory was not on the device within 5 s")
    if facts.drained:
        return released(state, DRAINED)
    if facts.wanted_ns <= 0:
        return released(state, "no rollout wants the device any more")
    if state.level is Level.SHRUNK and (late := _newly_late(facts)):
        reason = f"{_requests(late)} late by lending, although throttled and shrunk"
        return Change("preempt", reason, replace(state, ended="preempted"))
    return None


def _cut(facts: LeaseFacts, now_ns: int) -> Change | None:
    state, cut = facts.state, facts.cut
    if cut.count == state.cuts_taken or cut.lease_number != state.number:
        return None
    budget = min(state.kv_budget_bytes, cut.kv_budget_bytes)
    frozen = replace(state, kv_budget_bytes=budget, kv_budget_full_bytes=budget, frozen=True, cuts_taken=cut.count)
    return Change("cut", "serving grew into its headroom", frozen)


def _lateness(facts: LeaseFacts, now_ns: int) -> Change | None:
    state, rules, load = facts.state, facts.rules, facts.load
    if not rules.guards or load is None:
        return None
    if late := _newly_late(facts):
        state = replace(
            state,
            late_seen=load.late_by_lending,
            settled_at=load.finished + load.waiting + load.running,
            clean_since_ns=now_ns,
        )
        if state.level is Level.FULL:
            return Change("throttle", f"{_requests(late)} late by lending", _at_level(state, rules, Level.THROTTLED))
        shrunk = replace(_at_level(state, rules, Level.SHRUNK), kv_budget_bytes=state.kv_budget_bytes // 2)
        return Change("shrink", f"{_requests(late)} late by lending, although throttled", shrunk)
    if state.level is Level.FULL or now_ns - state.clean_since_ns < rules.ttl_ns:
        return None
    state = replace(state, clean_since_ns=now_ns)
    if state.level is Level.SHRUNK and not state.frozen:
        state = replace(state, kv_budget_bytes=state.kv_budget_full_bytes)
    return Change("restore", "no request late by lending for a term", _at_level(state, rules, Level(state.level - 1)))


def _at_level(state: LeaseState, rules: LeaseRules, level: Level) -> LeaseState:
    return replace(
        state,
        level=level,
        compute_share=share_at(rules.compute_share, level),
        regret_share=share_at(rules.regret_share, level),
    )


def _newly_late(facts: LeaseFacts) -> int:
    """Return how many requests are late because of lending, except those that arrived before the level last changed."""
    load, state = facts.load, facts.state
    if not facts.rules.guards or load is None or load.finished < state.settled_at:
        return 0
    return max(0, load.late_by_lending - state.late_seen)


def noted(state: LeaseState, load: ServingLoad | None, now_ns: int) -> LeaseState:
    """Return the lease's state, updated by serving's counts in `load`. Late requests do not count if they were alive
    when the lease last changed. If serving's counts restarted at 0, the state starts from the new counts."""
    if load is None or not state.in_force:
        return state
    if load.late_by_lending < state.late_seen:
        return replace(state, late_seen=load.late_by_lending, settled_at=0, clean_since_ns=now_ns)
    if load.finished < state.settled_at and load.late_by_lending > state.late_seen:
        return replace(state, late_seen=load.late_by_lending, clean_since_ns=now_ns)
    return state


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"
