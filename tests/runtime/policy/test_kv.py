from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy.kv import KvMemory, initial_budget_bytes, retraction_order, under_pressure

EMPTY = KvMemory(
    device_bytes=1000, serving_bytes_per_token=2, rollout_bytes_per_token=1, headroom=0.2, high_watermark=0.5
)


def test_two_models_of_different_shape_share_one_budget():
    memory = replace(EMPTY, serving_tokens=100, rollout_tokens=300)
    assert (memory.serving_bytes, memory.free_bytes) == (200, 500)


def test_a_new_lease_gets_what_serving_neither_holds_nor_keeps():
    assert initial_budget_bytes(replace(EMPTY, serving_tokens=150)) == 500
    assert initial_budget_bytes(replace(EMPTY, serving_tokens=450)) == 0


def test_pressure_begins_when_half_of_the_headroom_is_used():
    assert not under_pressure(replace(EMPTY, serving_tokens=200, rollout_tokens=500))
    assert under_pressure(replace(EMPTY, serving_tokens=200, rollout_tokens=501))


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_the_youngest_gives_its_memory_back_first_and_everyone_is_asked(arrivals):
    came = {f"r{index}": arrived_ns for index, arrived_ns in enumerate(arrivals)}
    assert [came.pop(name) for name in retraction_order(came)] == sorted(arrivals, reverse=True)
    assert not came
