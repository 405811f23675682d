from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy.kv import KvMemory, cut_budget_bytes, initial_budget_bytes, under_pressure

sizes = st.integers(0, 1 << 40)
shares = st.floats(0, 1)


def memory(device=1000, serving=0, rollout=0, headroom=0.2, high_watermark=0.5):
    return KvMemory(device, serving, rollout, headroom, high_watermark)


def test_a_budget_leaves_serving_what_it_holds_and_the_headroom():
    assert initial_budget_bytes(memory(serving=300)) == 500
    assert initial_budget_bytes(memory(serving=900)) == 0


def test_pressure_begins_past_the_high_watermark_of_the_headroom():
    assert not under_pressure(memory(serving=500, rollout=400))
    assert under_pressure(memory(serving=501, rollout=400))


def test_a_budget_is_halved_once_and_then_frozen():
    assert cut_budget_bytes(500, frozen=False) == 250
    assert cut_budget_bytes(250, frozen=True) == 250


@given(device=sizes, serving=sizes, headroom=shares, high_watermark=shares)
def test_rollouts_that_fill_their_first_budget_cause_no_pressure(device, serving, headroom, high_watermark):
    before = memory(device, serving, 0, headroom, high_watermark)
    budget = initial_budget_bytes(before)
    if budget > 0:
        assert not under_pressure(memory(device, serving, budget, headroom, high_watermark))


@given(device=sizes, serving=sizes, rollout=sizes, more=sizes, headroom=shares, high_watermark=shares)
def test_pressure_only_grows_with_serving(device, serving, rollout, more, headroom, high_watermark):
    if under_pressure(memory(device, serving, rollout, headroom, high_watermark)):
        assert under_pressure(memory(device, serving + more, rollout, headroom, high_watermark))
