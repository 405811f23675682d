from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.lease import (
    ACTIVATION_NS_MAX,
    WITHHELD,
    EngineCut,
    LeaseFacts,
    LeaseRules,
    LeaseState,
    Level,
    next_change,
    noted,
    refusal,
    released,
    worth_borrowing,
)
from rose.runtime.policy.policies import POLICIES
from rose.runtime.policy.serving import ServingHistory
from tests.runtime import loads

TTL = 3_000
RULES = LeaseRules(
    ttl_ns=TTL, compute_share=0.8, regret_share=0.05, borrow=POLICIES["rose"].borrow, guards=POLICIES["rose"].guards
)
MEMORY = KvMemory(
    device_bytes=1000, serving_bytes_per_token=2, rollout_bytes_per_token=1, headroom=0.2, high_watermark=0.5
)
IDLE = replace(loads.IDLE, decode_ns=0, largest_prefill_ns=1, usual_prefill_ns=1)


def facts(state=None, now=1000, **changes):
    usual = {
        "rules": RULES,
        "answered_ns": now,
        "wanted_ns": 500,
        "lease_named": False,
        "load": IDLE,
        "history": ServingHistory(),
        "memory": MEMORY,
        "idle_share": 1.0,
        "switch_ns": 0,
    }
    return LeaseFacts(state=state or LeaseState(), **{**usual, **changes})


def granted(now=1000, **changes):
    change = next_change(facts(now=now, **changes), now)
    assert change.action == "grant"
    return change.state


def late(count, **changes):
    return replace(IDLE, finished=10 + count, late_by_lending=count, **changes)


def step_down(state, count, now=1000):
    return next_change(facts(state, now, load=late(count)), now)


def test_a_borrow_must_bring_more_device_time_than_it_costs():
    assert worth_borrowing(1000, 0.5, 499)
    assert not worth_borrowing(1000, 0.5, 500)
    assert not worth_borrowing(1000, 0.0, 0)


def test_a_lease_gives_what_serving_neither_holds_nor_keeps_free():
    state = granted(memory=replace(MEMORY, serving_tokens=100), step=4)
    assert (state.number, state.step, state.expires_ns) == (1, 4, 1000 + TTL)
    assert (state.kv_budget_bytes, state.compute_share, state.regret_share) == (600, 0.8, 0.05)
    assert not state.frozen


@pytest.mark.parametrize("changes", [{"wanted_ns": 0}, {"answered_ns": 0}])
def test_nothing_is_granted_without_demand(changes):
    assert next_change(facts(**changes), 1000) is None


def test_an_answer_lends_for_no_longer_than_it_holds():
    assert granted(now=5000, answered_ns=5001 - TTL).expires_ns == 5001
    assert next_change(facts(now=5000, answered_ns=5000 - TTL), 5000) is None


def test_what_serving_misses_by_itself_lets_nothing_new_be_granted():
    history = ServingHistory().observe(IDLE, 0).observe(replace(IDLE, finished=100, late_alone=37), 1)
    assert next_change(facts(history=history), 1000) is None
    reason = refusal(facts(history=history), 1000)
    assert (reason.name, "37%" in reason.text, "`ttft_budget_ms`" in reason.text) == ("serving_late", True, True)
    assert next_change(facts(granted(), history=history), 1000) is None, "and takes nothing back"
    few = ServingHistory().observe(IDLE, 0).observe(replace(IDLE, finished=100, late_alone=5), 1)
    assert refusal(facts(history=few), 1000) is None


def test_a_policy_without_guards_lends_whatever_serving_does():
    rules = replace(RULES, borrow=POLICIES["static_split"].borrow, guards=POLICIES["static_split"].guards)
    history = ServingHistory().observe(IDLE, 0).observe(replace(IDLE, finished=100, late_alone=100), 1)
    state = granted(rules=rules, history=history, memory=replace(MEMORY, serving_tokens=400), idle_share=0.0)
    assert state.kv_budget_bytes == 800
    assert next_change(facts(state, rules=rules, load=late(5)), 1000) is None


def test_a_lease_ends_where_leases_are_withheld_and_none_is_granted_before_that_is_over():
    change = next_change(facts(granted(), withheld=True), 1000)
    assert (change.action, change.reason, change.state.ended) == ("release", WITHHELD, "released")
    assert next_change(facts(change.state, withheld=True), 1000) is None
    assert refusal(facts(change.state, withheld=True), 1000).name == "withheld"
    assert next_change(facts(change.state), 1000).action == "grant"


def test_a_lease_is_renewed_by_an_answer_that_names_it_and_ends_without():
    state = granted()
    assert next_change(facts(state, now=2000), 2000) is None
    renewal = next_change(facts(state, now=2000, lease_named=True), 2000)
    assert (renewal.action, renewal.state.expires_ns) == ("renew", 2000 + TTL)
    assert next_change(facts(renewal.state, now=2010, lease_named=True), 2010) is None, "hardly longer"
    # The gateway falls silent: its last answer renews nothing more and grants nothing more.
    silent = facts(renewal.state, answered_ns=2000, lease_named=True)
    assert next_change(silent, 1999 + TTL) is None
    end = next_change(silent, 2000 + TTL)
    assert (end.action, end.state.ended) == ("expire", "expired")
    assert next_change(replace(silent, state=end.state, lease_named=False), 2000 + TTL) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wanted_ns": 0}, "no rollout wants the device any more"),
        ({"wanted_ns": 0, "drained": True}, "the device is drained: its owner lends nothing of it"),
        ({"serving_fault": "none is attached"}, "none is attached"),
        ({"engine_fault": "the rollout engine died"}, "the rollout engine died"),
    ],
)
def test_a_lease_is_released_when_nobody_can_use_it(changes, reason):
    change = next_change(facts(granted(), lease_named=True, **changes), 1000)
    assert (change.action, change.reason, change.state.ended) == ("release", reason, "released")


def test_an_owner_gives_a_lease_back():
    change = released(granted(), "the agent stops")
    assert (change.action, change.state.in_force) == ("release", False)


def test_lateness_throttles_then_shrinks_then_takes_the_lease():
    throttled = step_down(granted(), 1)
    assert (throttled.action, throttled.reason) == ("throttle", "1 request late by lending")
    assert (throttled.state.compute_share, throttled.state.regret_share) == (0.4, 0.025)
    assert throttled.state.kv_budget_bytes == 800
    assert step_down(throttled.state, 1) is None, "each step wants new ones"
    shrunk = step_down(throttled.state, 3)
    assert (shrunk.action, shrunk.reason) == ("shrink", "2 requests late by lending, although throttled")
    assert (shrunk.state.kv_budget_bytes, shrunk.state.compute_share) == (400, 0.4)
    assert step_down(shrunk.state, 3) is None
    revoked = step_down(shrunk.state, 4)
    assert (revoked.action, revoked.state.ended) == ("preempt", "preempted")


def test_what_was_in_flight_at_a_step_speaks_against_nothing_after_it():
    busy = late(1, running=2, waiting=1)
    state = next_change(facts(granted(), load=busy), 1000).state
    finishing = replace(IDLE, finished=busy.finished + 2, late_by_lending=3)
    state = noted(state, finishing, 1100)
    assert next_change(facts(state, load=finishing), 1100) is None
    after = replace(IDLE, finished=busy.finished + 4, late_by_lending=3)
    assert next_change(facts(state, load=after), 1200) is None
    assert next_change(facts(state, load=replace(after, late_by_lending=4)), 1200).action == "shrink"


def test_clean_terms_undo_one_step_at_a_time():
    state = step_down(step_down(granted(), 1).state, 2).state
    load = late(2)
    state = replace(state, expires_ns=10 * TTL)
    assert next_change(facts(state, 999 + TTL, load=load), 999 + TTL) is None
    first = next_change(facts(state, 1000 + TTL, load=load), 1000 + TTL)
    assert (first.action, first.state.level, first.state.kv_budget_bytes) == ("restore", Level.THROTTLED, 800)
    assert first.state.compute_share == 0.4
    assert next_change(facts(first.state, 1001 + TTL, load=load), 1001 + TTL) is None
    second = next_change(facts(first.state, 1000 + 2 * TTL, load=load), 1000 + 2 * TTL)
    assert (second.action, second.state.level, second.state.compute_share) == ("restore", Level.FULL, 0.8)


def test_lateness_of_serving_alone_takes_nothing_back():
    state = granted()
    assert next_change(facts(state, load=replace(IDLE, finished=9, late_alone=9)), 1000) is None


def test_after_a_revocation_a_request_in_time_or_a_term_of_idleness_lends_again():
    state = step_down(step_down(step_down(granted(), 1).state, 2).state, 3).state
    load = late(3)
    busy = ServingHistory(idle_since_ns=None)
    assert next_change(facts(state, load=load, history=busy), 1000) is None
    assert refusal(facts(state, load=load, history=busy), 1000).name == "serving_recovers"
    also_late = replace(load, finished=load.finished + 1, late_by_lending=4)
    assert next_change(facts(state, load=also_late, history=busy), 1000) is None
    in_time = replace(load, finished=load.finished + 1)
    again = next_change(facts(state, load=in_time, history=busy), 1000)
    assert (again.action, again.state.level, again.state.kv_budget_bytes) == ("grant", Level.SHRUNK, 400)
    assert again.state.compute_share == 0.4
    later = 5000
    resting = ServingHistory(idle_since_ns=later - TTL)
    assert next_change(facts(state, later, load=load, history=resting), later).action == "grant"
    restless = ServingHistory(idle_since_ns=later - TTL + 1)
    assert next_change(facts(state, later, load=load, history=restless), later) is None


def test_a_serving_engine_that_counts_anew_is_heard():
    state = step_down(granted(), 5).state
    anew = replace(IDLE, finished=1)
    state = noted(state, anew, 1100)
    assert next_change(facts(state, load=replace(anew, finished=2, late_by_lending=1)), 1100).action == "shrink"


def test_the_engine_s_cut_is_taken_over_and_stays():
    state = granted()
    cut = EngineCut(count=1, lease_number=1, kv_budget_bytes=400)
    change = next_change(facts(state, cut=cut), 1000)
    assert (change.action, change.state.kv_budget_bytes, change.state.frozen) == ("cut", 400, True)
    assert next_change(facts(change.state, cut=cut), 1000) is None
    state = step_down(replace(change.state), 1).state
    assert next_change(facts(state, cut=replace(cut, lease_number=9, count=2)), 1000) is None


def test_a_second_lease_of_the_same_term_starts_no_higher():
    cut = EngineCut(count=1, lease_number=1, kv_budget_bytes=300)
    frozen = next_change(facts(granted(step=2), cut=cut, step=2), 1000).state
    over = released(frozen, "no rollout wants it").state
    again = next_change(facts(over, now=1500, cut=cut, step=3), 1500)
    assert (again.state.kv_budget_bytes, again.state.frozen) == (300, True)
    later = over.expires_ns
    assert next_change(facts(over, now=later, cut=cut, step=2), later).state.kv_budget_bytes == 300
    anew = next_change(facts(over, now=later, cut=cut, step=3), later).state
    assert (anew.kv_budget_bytes, anew.frozen) == (800, False)


def test_a_cut_that_is_seen_after_its_lease_binds_the_next_one():
    over = released(granted(), "no rollout wants it").state
    cut = EngineCut(count=1, lease_number=1, kv_budget_bytes=300)
    change = next_change(facts(over, cut=cut), 1000)
    assert (change.action, change.state.in_force) == ("cut", False)
    assert next_change(facts(change.state, cut=cut), 1000).state.kv_budget_bytes == 300


class Device:
    def __init__(self, guards):
        rules = RULES if guards else replace(RULES, guards=False)
        self.now = 1000
        self.facts = facts(now=0, rules=rules, answered_ns=0, wanted_ns=0)
        self.counts = {"finished": 0, "late_alone": 0, "late_by_lending": 0}
        self.granted, self.ended = [], []

    def look(self):
        state = noted(self.facts.state, self.facts.load, self.now)
        history = self.facts.history.observe(self.facts.load, self.now)
        self.facts = replace(self.facts, state=state, history=history)
        for _ in range(10):
            change = next_change(self.facts, self.now)
            if change is None:
                break
            self.carry_out(change)
        else:
            pytest.fail("it never comes to rest")

    def carry_out(self, change):
        before, after, known = self.facts.state, change.state, self.facts
        answer_holds = 0 < known.answered_ns <= self.now < known.answered_ns + TTL and known.wanted_ns > 0
        if change.action == "grant":
            assert answer_holds
            assert known.serving_fault is None
            assert known.engine_fault is None
            self.granted.append(after.number)
            same_term = before.frozen and self.now < before.expires_ns
            assert not same_term or after.kv_budget_bytes <= before.kv_budget_bytes
            self.facts = replace(known, lease_named=False)
        elif before.frozen:
            assert after.frozen
            assert after.kv_budget_bytes <= before.kv_budget_bytes
        if change.action == "renew":
            assert answer_holds
            assert known.lease_named
        if before.in_force and not after.in_force:
            self.ended.append(before.number)
        self.facts = replace(self.facts, state=after)

    def do(self, move, amount):
        known, number = self.facts, self.facts.state.number
        if move == "wait":
            self.now += amount * 100
        elif move == "answer":
            named = known.state.in_force and amount % 3 > 0
            self.facts = replace(known, answered_ns=self.now, wanted_ns=100 * (amount % 4), lease_named=named)
        elif move in self.counts:
            self.counts[move] += 1
            self.counts["finished"] += move != "finished"
            self.facts = replace(known, load=replace(IDLE, running=amount % 3, **self.counts))
        elif move == "cut" and known.state.in_force and not known.state.frozen:
            budget = known.state.kv_budget_bytes // 2
            self.facts = replace(known, cut=EngineCut(known.cut.count + 1, number, budget))
        elif move == "serving":
            self.facts = replace(known, serving_fault=None if known.serving_fault else "it is gone")
        elif move == "engine":
            self.facts = replace(known, engine_fault=None if known.engine_fault else "it died")
        elif move == "step":
            self.facts = replace(known, step=amount)


MOVES = ("wait", "answer", "finished", "late_alone", "late_by_lending", "cut", "serving", "engine", "step")
SEQUENCES = st.lists(st.tuples(st.sampled_from((*MOVES, "answer", "answer", "late_by_lending")), st.integers(1, 40)))


@given(SEQUENCES, st.booleans())
def test_no_sequence_of_events_loses_a_lease_or_leaves_one_in_force_for_too_long(moves, guards):
    device = Device(guards)
    for move, amount in moves:
        device.do(move, amount)
        device.look()
        state = device.facts.state
        if state.in_force:
            assert device.now < state.expires_ns <= device.facts.answered_ns + TTL
    if device.facts.state.in_force:
        device.carry_out(released(device.facts.state, "the agent stops"))
    assert device.granted == device.ended == list(range(1, len(device.granted) + 1))


@pytest.mark.parametrize("where", ["moving", "away"])
def test_a_lease_waits_for_the_engines_memory_for_so_long_and_no_longer(where):
    state = replace(granted(now=1000), expires_ns=10 * ACTIVATION_NS_MAX)
    end_ns = 1000 + ACTIVATION_NS_MAX
    known = {"answered_ns": 0, "engine_memory": where}
    assert next_change(facts(state, end_ns - 1, **known), end_ns - 1) is None
    change = next_change(facts(state, end_ns, **known), end_ns)
    assert (change.action, change.state.ended) == ("release", "released")
    assert "memory was not on the device within 5 s" in change.reason
    assert next_change(facts(state, end_ns, answered_ns=0), end_ns) is None


def test_an_engine_without_its_memory_is_lent_to_but_not_while_that_moves():
    assert granted(engine_memory="away").in_force
    moving = facts(engine_memory="moving")
    assert next_change(moving, 1000) is None
    assert refusal(moving, 1000).name == "activation"


@pytest.mark.parametrize(
    ("changes", "name", "part"),
    [
        ({"serving_fault": "none is attached"}, "no_serving", "none is attached"),
        ({"engine_fault": "it starts"}, "engine_away", "it starts"),
        ({"load": None}, "no_serving", "has not said"),
        ({"memory": replace(MEMORY, serving_tokens=400)}, "kv_memory", "KV memory"),
        ({"idle_share": 0.0, "serving_ns": 57_600_000_000, "observed_ns": 60_000_000_000}, "serving_busy", "96%"),
        ({"rules": replace(RULES, borrow=POLICIES["solo"].borrow)}, "policy", "`coserving.policy`"),
        (
            {"load": replace(IDLE, largest_prefill_ns=612 * 10**6, ttft_budget_ns=5 * 10**8)},
            "budget_unreachable",
            "612 ms",
        ),
    ],
)
def test_whatever_keeps_a_lease_from_being_granted_has_a_name_and_a_text(changes, name, part):
    refused = facts(**changes)
    assert next_change(refused, 1000) is None
    reason = refusal(refused, 1000)
    assert (reason.name, part in reason.text) == (name, True)
