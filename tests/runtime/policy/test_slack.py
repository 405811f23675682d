from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rose.runtime.policy.slack import (
    PROBE_AFTER_NS,
    REGRET_SPENT_SHARE,
    Budgets,
    Hold,
    LeaseTerms,
    StepFacts,
    admit,
    admit_any,
    admit_none,
    admit_share,
    attainable,
    late_by,
    room_ns,
)
from tests.runtime import loads

MS = 1_000_000
NOW = 5_000 * MS
TTFT_NS, TPOT_NS = 1000 * MS, 200 * MS
IDLE = replace(loads.IDLE, decode_ns=None, largest_prefill_ns=400 * MS, usual_prefill_ns=200 * MS)
#: One request runs, and rollouts may take ten seconds of it: slack alone decides.
RUNNING = replace(IDLE, running=1, next_token_due_ns=NOW + TPOT_NS, decode_ns=20 * MS, regret_room_ns=10_000 * MS)
WAITING = replace(
    IDLE, waiting=1, first_token_due_ns=NOW + TTFT_NS, waiting_prefill_ns=20 * MS, regret_room_ns=10_000 * MS
)
NO_TERMS = replace(IDLE, ttft_budget_ns=0, largest_prefill_ns=None)
LEASE = LeaseTerms(number=1, expires_ns=10_000 * MS, compute_share=1.0, kv_budget_tokens=1000, regret_share=0.05)
FACTS = StepFacts(
    load=IDLE,
    lease=LEASE,
    preempt_ns=10 * MS,
    step_ns=10 * MS,
    kv_tokens=0,
    busy_share=0.0,
    worked_ns=0,
    held_ns=0,
    now_ns=NOW,
)


def requests():
    """Draw (when a request came or got its last token, its budget for the next)."""
    return st.lists(st.tuples(st.integers(NOW - 50 * MS, NOW), st.integers(50 * MS, 500 * MS)), max_size=2)


def decide(**changes):
    return admit(replace(FACTS, **changes))


@pytest.mark.parametrize(
    ("changes", "hold"),
    [
        ({}, Hold.NONE),
        ({"lease": LeaseTerms()}, Hold.NO_LEASE),
        ({"now_ns": LEASE.expires_ns - 1}, Hold.NONE),
        ({"now_ns": LEASE.expires_ns}, Hold.NO_LEASE),
        ({"load": None}, Hold.NO_SERVING),
        ({"load": NO_TERMS}, Hold.NEXT_REQUEST),
        ({"load": NO_TERMS, "preempt_ns": None}, Hold.NEXT_REQUEST),
        ({"load": replace(IDLE, wanted=True)}, Hold.SERVING_STEP),
        ({"load": replace(RUNNING, largest_prefill_ns=None)}, Hold.UNKNOWN_TIMES),
        ({"load": replace(RUNNING, decode_ns=None)}, Hold.UNKNOWN_TIMES),
        ({"load": replace(WAITING, waiting_prefill_ns=None)}, Hold.UNKNOWN_TIMES),
        # The first steps of their sort run only where nobody is served.
        ({"preempt_ns": None}, Hold.NONE),
        ({"preempt_ns": None, "load": RUNNING}, Hold.UNKNOWN_TIMES),
        # The largest next request must still fit behind those that wait.
        ({"load": replace(IDLE, largest_prefill_ns=991 * MS)}, Hold.NEXT_REQUEST),
        ({"load": replace(WAITING, waiting_prefill_ns=600 * MS)}, Hold.NEXT_REQUEST),
        ({"kv_tokens": 1001}, Hold.KV_BUDGET),
        ({"lease": replace(LEASE, compute_share=0.5), "busy_share": 0.51}, Hold.COMPUTE_SHARE),
        # The next request is expected to wait half a layer, beside five percent of the usual 200 ms.
        ({"preempt_ns": 20 * MS}, Hold.NONE),
        ({"preempt_ns": 21 * MS}, Hold.REGRET),
    ],
)
def test_why_a_step_is_held(changes, hold):
    decision = decide(**changes)
    assert (decision.hold, decision.admitted) == (hold, hold is Hold.NONE)


def test_an_engine_that_has_served_nobody_yet_is_lent_within_what_its_budget_allows():
    fresh = replace(IDLE, largest_prefill_ns=None, usual_prefill_ns=None)
    share_ns = int(LEASE.regret_share * TTFT_NS)
    assert decide(load=fresh, preempt_ns=2 * share_ns).admitted
    assert decide(load=fresh, preempt_ns=2 * share_ns + 2).hold is Hold.REGRET
    assert decide(load=fresh, preempt_ns=TTFT_NS).hold is Hold.NEXT_REQUEST


def test_decode_slack_is_what_the_tpot_budget_leaves_after_prefills_that_go_first():
    load = replace(RUNNING, next_token_due_ns=NOW + 150 * MS, decode_ns=60 * MS)
    assert decide(load=load, preempt_ns=90 * MS - 1).hold is not Hold.DECODE_SLACK
    assert decide(load=load, preempt_ns=90 * MS).hold is Hold.DECODE_SLACK
    behind = replace(load, waiting=1, first_token_due_ns=NOW + TTFT_NS, waiting_prefill_ns=30 * MS)
    assert decide(load=behind, preempt_ns=60 * MS - 1).hold is not Hold.DECODE_SLACK
    assert decide(load=behind, preempt_ns=60 * MS).hold is Hold.DECODE_SLACK


def test_prefill_slack_is_what_the_ttft_budget_leaves():
    load = replace(WAITING, first_token_due_ns=NOW + 700 * MS, waiting_prefill_ns=500 * MS, largest_prefill_ns=0)
    assert decide(load=load, preempt_ns=200 * MS - 1).hold is not Hold.PREFILL_SLACK
    assert decide(load=load, preempt_ns=200 * MS).hold is Hold.PREFILL_SLACK


def test_a_living_request_is_delayed_by_at_most_its_share():
    load = replace(RUNNING, regret_room_ns=15 * MS, worked_ns=100 * MS)
    assert decide(load=load, preempt_ns=15 * MS, worked_ns=100 * MS).admitted
    assert decide(load=load, preempt_ns=16 * MS, worked_ns=100 * MS).hold is Hold.REGRET
    assert decide(load=load, preempt_ns=10 * MS, worked_ns=106 * MS).hold is Hold.REGRET


def test_a_prediction_about_the_next_request_alone_cannot_keep_an_unused_device_for_ever():
    for slow, load in ((5000 * MS, IDLE), (100 * MS, replace(IDLE, usual_prefill_ns=0))):  # beyond slack, beyond regret
        assert not decide(preempt_ns=slow, load=load, held_ns=PROBE_AFTER_NS - 1).admitted
        assert decide(preempt_ns=slow, load=load, held_ns=PROBE_AFTER_NS).admitted
    for load in (WAITING, RUNNING):
        assert not decide(preempt_ns=5000 * MS, load=load, held_ns=10 * PROBE_AFTER_NS).admitted


def test_a_step_that_costs_the_next_request_twice_its_share_may_run_half_of_the_time():
    """The next request's share is 10 ms, and 20 ms are expected of a step that gives way within 40 ms."""
    for step_ns in (40 * MS, 320 * MS):
        assert decide(preempt_ns=40 * MS, step_ns=step_ns, held_ns=step_ns - 1).hold is Hold.REGRET
        assert decide(preempt_ns=40 * MS, step_ns=step_ns, held_ns=step_ns).admitted
    served = replace(RUNNING, regret_room_ns=0)
    assert not decide(preempt_ns=40 * MS, step_ns=320 * MS, load=served, held_ns=320 * MS).admitted


@given(
    preempt_ns=st.integers(0, 600 * MS),
    layers=st.integers(1, 100),
    usual_ns=st.integers(0, 400 * MS),
    share=st.floats(0, 1),
    held_ns=st.integers(0, PROBE_AFTER_NS - 1),
)
def test_over_all_next_requests_lending_costs_no_more_than_the_share(preempt_ns, layers, usual_ns, share, held_ns):
    lease, load = replace(LEASE, regret_share=share), replace(IDLE, usual_prefill_ns=usual_ns)
    step_ns = preempt_ns * layers
    decision = decide(preempt_ns=preempt_ns, step_ns=step_ns, lease=lease, load=load, held_ns=held_ns)
    if decision.admitted:
        assert (preempt_ns // 2) * step_ns <= int(share * usual_ns) * (step_ns + held_ns)
    else:
        assert decision.hold in (Hold.REGRET, Hold.NEXT_REQUEST)


def test_a_budget_that_serving_alone_cannot_meet_is_not_probed():
    load = replace(IDLE, largest_prefill_ns=1000 * MS)
    assert not attainable(load)
    assert decide(load=load, held_ns=10 * PROBE_AFTER_NS).hold is Hold.NEXT_REQUEST
    assert decide(load=load, preempt_ns=None).hold is Hold.NEXT_REQUEST


def test_a_request_has_the_budgets_of_its_priority_else_the_default_ones():
    urgent = Budgets(ttft_ns=100, tpot_ns=500)
    budgets = Budgets(ttft_ns=200, tpot_ns=20, classes={1: urgent})
    assert budgets.of(1) is urgent
    assert budgets.of(0) is budgets.of(None) is budgets
    assert budgets.ttft_min_ns == 100
    assert replace(budgets, ttft_ns=50).ttft_min_ns == 50


@pytest.mark.parametrize(
    ("took", "lent", "late"),
    [(100, 0, None), (100, 50, None), (101, 0, "alone"), (150, 40, "alone"), (150, 50, "lending")],
)
def test_a_late_request_is_put_down_to_who_made_it_late(took, lent, late):
    assert late_by(took_ns=took, lent_ns=lent, budget_ns=100) == late


def test_the_policies_that_it_is_compared_with():
    busy = replace(FACTS, load=replace(IDLE, wanted=True), kv_tokens=2000, busy_share=1.0)
    assert admit_any(busy).admitted
    assert admit_share(busy).hold is Hold.KV_BUDGET
    assert admit_share(replace(busy, kv_tokens=0, lease=replace(LEASE, compute_share=0.5))).hold is Hold.COMPUTE_SHARE
    assert admit_share(replace(busy, kv_tokens=0, busy_share=0.3)).admitted
    assert admit_none(FACTS).hold is Hold.POLICY
    for policy in (admit_any, admit_share, admit_none):
        assert policy(replace(FACTS, lease=LeaseTerms())).hold is Hold.NO_LEASE


@given(
    running=st.integers(0, 4),
    waiting=st.integers(0, 4),
    age_ns=st.integers(0, 2_000 * MS),
    decode_ns=st.none() | st.integers(0, 300 * MS),
    prefill_ns=st.none() | st.integers(0, 1500 * MS),
    largest_ns=st.none() | st.integers(0, 1500 * MS),
    room=st.integers(-100 * MS, 1500 * MS),
    preempt_ns=st.none() | st.integers(0, 1500 * MS),
    worked_ns=st.integers(0, 100 * MS),
    held_ns=st.integers(0, 2 * PROBE_AFTER_NS),
)
def test_an_admitted_step_breaks_no_limit(
    running, waiting, age_ns, decode_ns, prefill_ns, largest_ns, room, preempt_ns, worked_ns, held_ns
):
    load = replace(
        IDLE,
        running=running,
        waiting=waiting,
        waiting_prefill_ns=prefill_ns,
        first_token_due_ns=NOW - age_ns + TTFT_NS,
        next_token_due_ns=NOW - age_ns + TPOT_NS,
        decode_ns=decode_ns,
        largest_prefill_ns=largest_ns,
        regret_room_ns=room,
    )
    decision = decide(load=load, preempt_ns=preempt_ns, worked_ns=worked_ns, held_ns=held_ns)
    assert decision.admitted == (decision.hold is Hold.NONE)
    if not decision.admitted:
        return
    if running or waiting:
        assert largest_ns is not None
        assert preempt_ns is not None
        assert preempt_ns + worked_ns <= room
        assert TTFT_NS - largest_ns - (prefill_ns or 0) - preempt_ns > 0
    if waiting:
        assert load.first_token_due_ns - NOW - prefill_ns > preempt_ns
    if running:
        assert load.next_token_due_ns - NOW - (prefill_ns or 0) - decode_ns > preempt_ns


@given(shorter_ns=st.integers(0, 500 * MS), more_ns=st.integers(0, 500 * MS), age_ns=st.integers(0, 400 * MS))
def test_a_step_that_keeps_the_device_longer_is_never_admitted_where_a_shorter_is_not(shorter_ns, more_ns, age_ns):
    load = replace(RUNNING, next_token_due_ns=NOW - age_ns + TPOT_NS, regret_room_ns=300 * MS)
    if decide(load=load, preempt_ns=shorter_ns + more_ns).admitted:
        assert decide(load=load, preempt_ns=shorter_ns).admitted


@settings(max_examples=300)  # Few of them lie where a budget decides.
@given(
    waiting=requests(),
    running=requests(),
    tightened=st.integers(0, 3),
    by_ns=st.integers(0, 500 * MS),
    largest_ns=st.integers(0, 50 * MS),
    preempt_ns=st.integers(0, 200 * MS),
)
def test_tightening_one_live_request_s_budget_never_admits_a_step_that_was_refused(
    waiting, running, tightened, by_ns, largest_ns, preempt_ns
):
    def admitted():
        load = replace(
            IDLE,
            waiting=len(waiting),
            waiting_prefill_ns=20 * MS,
            running=len(running),
            decode_ns=20 * MS,
            largest_prefill_ns=largest_ns,
            regret_room_ns=1_000 * MS,
            first_token_due_ns=min((at_ns + budget_ns for at_ns, budget_ns in waiting), default=0),
            next_token_due_ns=min((at_ns + budget_ns for at_ns, budget_ns in running), default=0),
            ttft_budget_ns=min([TTFT_NS, *(budget_ns for _, budget_ns in waiting)]),
        )
        return decide(load=load, preempt_ns=preempt_ns).admitted

    live = [(group, index) for group in (waiting, running) for index in range(len(group))]
    assume(live)
    before = admitted()
    group, index = live[tightened % len(live)]
    at_ns, budget_ns = group[index]
    group[index] = at_ns, max(1, budget_ns - by_ns)
    assert before or not admitted()


@given(st.lists(st.tuples(st.integers(1, 500 * MS), st.integers(0, 60 * MS)), max_size=60), st.floats(0.01, 0.5))
def test_a_request_is_never_delayed_by_more_than_its_share(turns, share):
    elapsed_ns = lent_ns = 0
    for serving_ns, rollout_ns in turns:
        elapsed_ns += serving_ns
        room = room_ns(solo_ns=elapsed_ns - lent_ns, lent_ns=lent_ns, share=share)
        load = replace(RUNNING, regret_room_ns=room, worked_ns=lent_ns)
        if decide(load=load, preempt_ns=rollout_ns, worked_ns=lent_ns).admitted:
            elapsed_ns, lent_ns = elapsed_ns + rollout_ns, lent_ns + rollout_ns
        assert lent_ns <= share * REGRET_SPENT_SHARE * (elapsed_ns - lent_ns) + 1
