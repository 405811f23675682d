from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy import routing
from rose.runtime.policy.lease import worth_borrowing
from rose.runtime.policy.routing import ROUNDS_MAX, DemandFacts
from tests.runtime.policy.workers import BORROWED, DEDICATED, NOW_NS, workers

UNLEASED = replace(BORROWED, engine_id="unleased", lease_until_ns=0)
DEMAND = DemandFacts(turns=2, turn_ns=1000, follow_share=0.0, version_min=3)

facts = st.builds(
    DemandFacts,
    turns=st.integers(1, 100_000),
    turn_ns=st.integers(0, 10**12),
    follow_share=st.floats(0, 1),
    version_min=st.integers(0, 5),
    waited_ns=st.integers(0, 10**12),
)


def wanted_ns(demand, table):
    return routing.wanted_ns(demand, table, NOW_NS)


def test_a_device_is_wanted_before_it_is_lent():
    assert wanted_ns(DEMAND, [DEDICATED, UNLEASED]) == {"dedicated": 1000, "unleased": 1000}


def test_more_turns_than_fit_at_once_want_more_time_and_fewer_than_engines_less():
    assert wanted_ns(replace(DEMAND, turns=32), [DEDICATED, UNLEASED])["unleased"] == 2000
    assert wanted_ns(replace(DEMAND, turns=1), [DEDICATED, UNLEASED])["unleased"] == 500


def test_trajectories_that_go_on_want_the_turns_that_follow():
    assert wanted_ns(replace(DEMAND, follow_share=0.75), [UNLEASED, DEDICATED])["unleased"] == 4000
    assert wanted_ns(replace(DEMAND, follow_share=1.0), [UNLEASED, DEDICATED])["unleased"] == 1000 * ROUNDS_MAX


def test_an_engine_that_could_take_none_of_the_turns_is_not_wanted():
    assert wanted_ns(DEMAND, [replace(UNLEASED, policy_version=2), DEDICATED]).keys() == {"dedicated"}
    assert wanted_ns(DEMAND, [replace(UNLEASED, alive_until_ns=NOW_NS)]) == {}


@given(facts, workers, st.integers(0, 10**10), st.floats(0.01, 1))
def test_turns_that_wait_come_to_be_worth_a_lease_however_short_they_are(demand, table, switch_ns, idle_share):
    waits = replace(demand, waited_ns=int(switch_ns / idle_share) + 2)
    for value in wanted_ns(waits, table).values():
        assert worth_borrowing(value, idle_share, switch_ns)


@given(facts, workers)
def test_something_is_wanted_of_every_engine_that_could_take_a_turn_and_of_no_other(demand, table):
    wanted = wanted_ns(demand, table)
    usable = {w.engine_id for w in table if w.alive(NOW_NS) and w.capacity and w.policy_version >= demand.version_min}
    assert wanted.keys() == usable
    assert all(value >= 1 for value in wanted.values())
    assert wanted_ns(replace(demand, turns=0), table) == {}


@given(facts, workers, st.integers(1, 1000))
def test_more_turns_never_want_less(demand, table, more):
    before, after = wanted_ns(demand, table), wanted_ns(replace(demand, turns=demand.turns + more), table)
    assert all(after[engine] >= value for engine, value in before.items())
