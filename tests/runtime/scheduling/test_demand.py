from hypothesis import example, given
from hypothesis import strategies as st

from rose.runtime.scheduling.devices import HOLD_NS, Demand, Device, differs
from rose.runtime.scheduling.messages import HeartbeatReply

engines = st.dictionaries(st.sampled_from("abc"), st.integers(1, 1000))
runs = st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from("xy"))
models = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))
steps = st.none() | st.integers(0, 3)
replies = st.builds(HeartbeatReply, step=steps, wanted_ns=engines, rollout_run_ids=runs, models=models)
WANTS_1, WANTS_2 = (HeartbeatReply(wanted_ns={"a": value}) for value in (1, 2))


@example([(10, {"a": 7}), (HOLD_NS - 1, {}), (1, {})])
@given(st.lists(st.tuples(st.integers(0, 2 * HOLD_NS), engines)))
def test_what_is_wanted_is_what_turns_want_now_and_what_they_wanted_within_the_hold(history):
    demand, now, seen = Demand(), 0, {}
    for step_ns, engines_ns in history:
        now += step_ns
        seen |= {engine: (value, now) for engine, value in engines_ns.items()}
        assessed = demand.assess(engines_ns, now)
        assert assessed == {engine: value for engine, (value, at) in seen.items() if at > now - HOLD_NS}
    assert demand.assess({}, now + HOLD_NS) == {}


@given(replies, replies)
def test_what_differs_is_seen_whoever_asks(before, after):
    assert not differs(before, before)
    if not differs(after, before):
        assert after.step == before.step
        assert (after.rollout_run_ids, after.models) == (before.rollout_run_ids, before.models)
        assert after.wanted_ns.keys() == before.wanted_ns.keys()
        assert all(value < 2 * before.wanted_ns[engine] for engine, value in after.wanted_ns.items())


# An answer that was lost said more than the next one, and the one after that says as much again.
@example([(WANTS_2, False), (WANTS_1, True), (WANTS_2, True)])
@given(st.lists(st.tuples(replies, st.booleans())))
def test_an_agent_that_polls_never_misses_a_change(history):
    device, seen, last, numbers = Device("d", 0, 0), 0, None, []
    for now, arrives in history:
        if device.lacks(now, seen):
            number = device.answer(now, seen).seq
            numbers.append(number)
            assert not device.lacks(now, number)
            if arrives:  # else the answer was lost on its way
                seen, last = number, now
        else:
            assert last is not None
            assert not differs(now, last)
            assert device.answer(now, seen).seq == seen
    assert numbers == sorted(numbers)


def test_numbers_of_a_gateway_that_comes_back_are_later():
    first = Device("d", 0, 0).answer(HeartbeatReply(), 0)
    assert Device("d", 0, 0).answer(HeartbeatReply(), 0).seq > first.seq
