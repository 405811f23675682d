from __future__ import annotations

from rose.runtime.policy.lease import BorrowCase, must_revoke, worth_borrowing
from rose.runtime.policy.slack import Budgets, ServingLoad

BUDGETS = Budgets(ttft_ns=100, tpot_ns=10)


def load(waiting=0, arrival=0, prefill=0, running=0, token=0, decode=0):
    return ServingLoad(False, waiting, prefill, arrival, running, token, decode, 0)


def test_a_borrow_must_bring_more_device_time_than_it_costs():
    assert worth_borrowing(BorrowCase(wanted_ns=1000, idle_share=0.5, switch_ns=499))
    assert not worth_borrowing(BorrowCase(wanted_ns=1000, idle_share=0.5, switch_ns=500))
    assert not worth_borrowing(BorrowCase(wanted_ns=1000, idle_share=0.0, switch_ns=0))


def test_a_device_is_taken_back_when_serving_is_late_in_fact():
    assert not must_revoke(load(), BUDGETS, 1000)
    assert not must_revoke(load(waiting=1, arrival=900, prefill=500), BUDGETS, 1000)
    assert must_revoke(load(waiting=1, arrival=899), BUDGETS, 1000)
    assert not must_revoke(load(running=1, token=990, decode=500), BUDGETS, 1000)
    assert must_revoke(load(running=1, token=989), BUDGETS, 1000)
