from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy.slack import (
    PROBE_AFTER_NS,
    Budgets,
    Hold,
    LeaseTerms,
    ServingLoad,
    admit,
    decode_slack_ns,
    prefill_slack_ns,
)

MS = 1_000_000
IDLE = ServingLoad(False, 0, 0, 0, 0, 0, 0, 100 * MS)
BUDGETS = Budgets(ttft_ns=1000 * MS, tpot_ns=200 * MS)
LEASE = LeaseTerms(expires_ns=10_000 * MS, compute_share=1.0, kv_budget_tokens=1000)
NOW = 5_000 * MS


def decide(load=IDLE, lease=LEASE, step_ns=10 * MS, kv_tokens=0, busy_share=0.0, held_ns=0, now_ns=NOW):
    return admit(
        load, BUDGETS, lease, step_ns=step_ns, kv_tokens=kv_tokens, busy_share=busy_share, held_ns=held_ns,
        now_ns=now_ns,
    )  # fmt: skip


def test_a_prediction_alone_cannot_keep_an_unused_device_for_ever():
    """A slow first step must not be the last one that is ever measured."""
    slow = {"step_ns": 5000 * MS}
    assert decide(**slow, held_ns=PROBE_AFTER_NS - 1).hold is Hold.NEXT_REQUEST
    assert decide(**slow, held_ns=PROBE_AFTER_NS).admitted
    for busy in (replace(IDLE, waiting=1, earliest_arrival_ns=NOW), replace(IDLE, running=1, oldest_token_ns=NOW)):
        assert decide(**slow, load=busy, held_ns=10 * PROBE_AFTER_NS).hold is Hold.NEXT_REQUEST
    assert decide(**slow, load=replace(IDLE, in_step=True), held_ns=10 * PROBE_AFTER_NS).hold is Hold.SERVING_STEP


def test_an_idle_device_under_a_lease_admits():
    decision = decide()
    assert decision.admitted
    assert decision.hold is Hold.NONE


def test_without_a_lease_nothing_runs():
    assert decide(lease=replace(LEASE, expires_ns=0)).hold is Hold.NO_LEASE


def test_a_lease_ends_by_itself_at_its_expiry():
    assert decide(now_ns=LEASE.expires_ns - 1).admitted
    assert decide(now_ns=LEASE.expires_ns).hold is Hold.NO_LEASE


def test_serving_in_a_step_holds_a_rollout_step():
    assert decide(load=replace(IDLE, in_step=True)).hold is Hold.SERVING_STEP


def test_decode_slack_is_what_the_tpot_budget_leaves():
    load = replace(IDLE, running=2, oldest_token_ns=NOW - 50 * MS, decode_ns=60 * MS)
    assert decode_slack_ns(load, BUDGETS, NOW) == 90 * MS
    assert decide(load=load, step_ns=89 * MS).admitted
    assert decide(load=load, step_ns=90 * MS).hold is Hold.DECODE_SLACK


def test_prefill_slack_is_what_the_ttft_budget_leaves():
    load = replace(IDLE, waiting=1, earliest_arrival_ns=NOW - 300 * MS, waiting_prefill_ns=500 * MS)
    assert prefill_slack_ns(load, BUDGETS, NOW) == 200 * MS
    assert decide(load=load, step_ns=199 * MS).admitted
    assert decide(load=load, step_ns=200 * MS).hold is Hold.PREFILL_SLACK


def test_the_largest_next_request_must_still_fit():
    assert decide(load=replace(IDLE, largest_prefill_ns=991 * MS)).hold is Hold.NEXT_REQUEST


def test_a_kv_budget_and_a_compute_share_hold_too():
    assert decide(kv_tokens=1001).hold is Hold.KV_BUDGET
    assert decide(lease=replace(LEASE, compute_share=0.5), busy_share=0.51).hold is Hold.COMPUTE_SHARE


@given(
    running=st.integers(0, 4),
    waiting=st.integers(0, 4),
    age_ns=st.integers(0, 2_000 * MS),
    decode_ns=st.integers(0, 300 * MS),
    prefill_ns=st.integers(0, 1500 * MS),
    largest_ns=st.integers(0, 1500 * MS),
    step_ns=st.integers(0, 1500 * MS),
)
def test_an_admitted_step_leaves_every_slack_positive(
    running, waiting, age_ns, decode_ns, prefill_ns, largest_ns, step_ns
):
    load = ServingLoad(False, waiting, prefill_ns, NOW - age_ns, running, NOW - age_ns, decode_ns, largest_ns)
    decision = decide(load=load, step_ns=step_ns)
    slacks = [BUDGETS.ttft_ns - largest_ns - step_ns]
    if waiting:
        slacks.append(prefill_slack_ns(load, BUDGETS, NOW) - step_ns)
    if running:
        slacks.append(decode_slack_ns(load, BUDGETS, NOW) - step_ns)
    assert decision.admitted == (min(slacks) > 0)
    assert decision.admitted == (decision.hold is Hold.NONE)
    if decision.admitted:
        assert decision.slack_ns == min(slacks)


@given(shorter_ns=st.integers(0, 500 * MS), more_ns=st.integers(0, 500 * MS), age_ns=st.integers(0, 400 * MS))
def test_a_longer_step_is_never_admitted_where_a_shorter_is_not(shorter_ns, more_ns, age_ns):
    load = replace(IDLE, running=1, oldest_token_ns=NOW - age_ns, decode_ns=20 * MS)
    if decide(load=load, step_ns=shorter_ns + more_ns).admitted:
        assert decide(load=load, step_ns=shorter_ns).admitted
