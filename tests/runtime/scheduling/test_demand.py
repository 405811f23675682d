from hypothesis import example, given
from hypothesis import strategies as st

from rose.runtime.scheduling import demand as demand_module
from rose.runtime.scheduling.demand import HOLD_NS, Answers, Demand, Wanted

engines = st.dictionaries(st.sampled_from("abc"), st.integers(1, 1000))
runs = st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from("xy"))
models = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))
wanted = st.builds(Wanted, st.none() | st.integers(0, 3), engines, rollout_run_ids=runs, models=models)


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


@given(wanted, wanted)
def test_what_differs_is_seen_whoever_asks(before, after):
    assert not before.differs(before)
    if not after.differs(before):
        assert after.step == before.step
        assert (after.rollout_run_ids, after.models) == (before.rollout_run_ids, before.models)
        assert after.engines_ns.keys() == before.engines_ns.keys()
        assert all(value < 2 * before.engines_ns[engine] for engine, value in after.engines_ns.items())


# An answer that was lost said more than the next one, and the one after that says as much again.
@example([(Wanted(None, {"a": 2}), False), (Wanted(None, {"a": 1}), True), (Wanted(None, {"a": 2}), True)])
@given(st.lists(st.tuples(wanted, st.booleans())))
def test_an_agent_that_polls_never_misses_a_change(history):
    """When no answer is due, the agent's last answer is still what is wanted."""
    answers, seen, last, numbers = Answers(first=5), 0, None, []
    for now, arrives in history:
        if answers.due("d", seen, now):
            number = answers.give("d", seen, now)
            numbers.append(number)
            assert not answers.due("d", number, now)
            if arrives:  # else the answer was lost on its way
                seen, last = number, now
        else:
            assert last is not None
            assert not now.differs(last)
            assert answers.give("d", seen, now) == seen
    assert numbers == sorted(numbers)


def test_devices_are_answered_apart_and_forgotten(monkeypatch):
    monkeypatch.setattr(demand_module, "DEVICES_MAX", 1)
    answers = Answers(first=0)
    number = answers.give("a", 0, Wanted())
    assert answers.due("b", number, Wanted())
    assert not answers.due("a", number, Wanted())
    answers.give("b", 0, Wanted())
    assert answers.due("a", number, Wanted())


def test_numbers_of_a_gateway_that_comes_back_are_later():
    first = Answers().give("a", 0, Wanted())
    assert Answers().give("a", 0, Wanted()) > first
