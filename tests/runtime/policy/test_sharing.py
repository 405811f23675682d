from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.policy.sharing import AWAY_NS, HOLD_MAX_NS, HOLD_MIN_NS, EngineFacts, RunFacts, assign, hold_ns, serve

NAMES = ("a", "b", "c", "d")
NOW = 100 * HOLD_MIN_NS
runs = st.lists(
    st.builds(
        RunFacts,
        run_id=st.sampled_from(NAMES),
        turns=st.integers(0, 30),
        weight=st.floats(0.1, 10),
        priority=st.integers(-1, 1),
        served=st.floats(0, 100),
    ),
    max_size=4,
    unique_by=lambda run: run.run_id,
)
engines = st.lists(
    st.builds(
        EngineFacts,
        engine_id=st.sampled_from([f"e{n}" for n in range(8)]),
        capacity=st.integers(1, 16),
        run_id=st.sampled_from([None, "gone", *NAMES]),
        since_ns=st.integers(NOW - 3 * HOLD_MIN_NS, NOW),
        switch_ns=st.integers(0, HOLD_MIN_NS // 4),
        unlent_ns=st.sampled_from([0, AWAY_NS]),
    ),
    max_size=8,
    unique_by=lambda engine: engine.engine_id,
)


def held(chosen, table, run_id):
    return [table[engine_id] for engine_id, run in chosen.items() if run == run_id]


@given(engines, runs)
def test_an_assignment_is_sound(engines, runs):
    chosen = assign(engines, runs, NOW)
    table = {engine.engine_id: engine for engine in engines}
    by_id = {run.run_id: run for run in runs}
    assert chosen.keys() <= table.keys()
    assert set(chosen.values()) <= by_id.keys()
    assert chosen == assign(list(reversed(engines)), list(reversed(runs)), NOW)
    for engine in engines:
        run = by_id.get(engine.run_id)
        if run is not None and run.turns and NOW - engine.since_ns < hold_ns(engine):
            assert chosen[engine.engine_id] == run.run_id, "taken before its hold was over"
        if run is not None and chosen.get(engine.engine_id) != run.run_id:
            assert by_id[chosen[engine.engine_id]].turns, "taken for nobody"
    # No engine stands by while a run has more turns than engines.
    standing_by = [e for e in engines if not (run := by_id.get(chosen.get(e.engine_id))) or not run.turns]
    if standing_by:
        assert all(len(held(chosen, table, run.run_id)) >= run.turns for run in runs)


@given(engines, runs)
def test_what_was_chosen_is_chosen_again(engines, runs):
    """Engines of several capacities may be packed otherwise once their holds are over."""
    runs = [replace(run, served=0.0) for run in runs]
    free = [replace(engine, since_ns=0, capacity=4) for engine in engines]
    once = assign(free, runs, NOW)
    moved = [replace(engine, run_id=once.get(engine.engine_id)) for engine in free]
    assert assign(moved, runs, NOW) == once


@given(engines, runs)
def test_a_higher_priority_has_room_before_a_lower_one_has_any(engines, runs):
    free = [replace(engine, run_id=None) for engine in engines]
    chosen = assign(free, runs, NOW)
    table = {engine.engine_id: engine for engine in free}
    for run in runs:
        if sum(engine.capacity for engine in held(chosen, table, run.run_id)) < run.turns:
            assert not any(held(chosen, table, other.run_id) for other in runs if other.priority < run.priority)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(0.25, 4), min_size=2, max_size=4), st.integers(1, 5), st.integers(1, 3))
def test_shares_come_to_the_weights(weights, count, capacity):
    """Runs with more turns than there is room, over many holds."""
    names = NAMES[: len(weights)]
    by_name = dict(zip(names, weights, strict=True))
    table = {f"e{n}": EngineFacts(f"e{n}", capacity) for n in range(count)}
    served: dict[str, float] = {}
    had = dict.fromkeys(names, 0)
    rounds = 300
    for number in range(rounds):
        now = number * HOLD_MIN_NS
        wanting = [RunFacts(name, 1000, by_name[name], served=served.get(name, 0.0)) for name in names]
        chosen = assign(table.values(), wanting, now)
        for engine_id, name in chosen.items():
            if table[engine_id].run_id != name:
                table[engine_id] = replace(table[engine_id], run_id=name, since_ns=now)
            had[name] += capacity
        slots = {name: sum(capacity for run in chosen.values() if run == name) for name in names}
        served = serve(served, slots, by_name, HOLD_MIN_NS)
    for name in names:
        due = by_name[name] / sum(weights)
        assert abs(had[name] / (rounds * count * capacity) - due) < 0.03, (had, by_name)


def test_a_run_that_comes_back_is_owed_nothing():
    served = serve({}, {"a": 8}, {"a": 1.0}, 10**12)
    served = serve(served, {"a": 8}, {"a": 1.0, "b": 1.0}, 10**9)
    # Level with the other from here on: what `a` had alone does not count.
    assert served["a"] - served["b"] == 8.0


def test_a_run_with_few_turns_leaves_the_rest_to_others():
    table = [EngineFacts(f"e{n}", 4) for n in range(4)]
    chosen = assign(table, [RunFacts("a", 2), RunFacts("b", 100)], NOW)
    assert sorted(chosen.values()) == ["a", "b", "b", "b"]
    assert sorted(assign(table, [RunFacts("a", 2)], NOW).values()) == ["a", "a"]


def test_a_run_without_turns_keeps_its_engines_until_somebody_wants_them():
    table = [EngineFacts("e0", 4, "a"), EngineFacts("e1", 4, "a", NOW)]
    assert assign(table, [RunFacts("a", 0), RunFacts("b", 0)], NOW) == {"e0": "a", "e1": "a"}
    assert assign(table, [RunFacts("a", 0), RunFacts("b", 9)], NOW) == {"e0": "b", "e1": "b"}
    assert assign(table, [RunFacts("b", 0)], NOW) == {}


def test_a_run_that_has_only_an_engine_that_is_not_lent_gets_its_turn_at_one_that_works():
    table = {"works": EngineFacts("works", 4), "away": EngineFacts("away", 4, unlent_ns=AWAY_NS)}
    served: dict[str, float] = {}
    worked = dict.fromkeys("ab", 0)
    for number in range(100):
        now = number * HOLD_MIN_NS
        chosen = assign(table.values(), [RunFacts(name, 4, served=served.get(name, 0.0)) for name in "ab"], now)
        assert sorted(chosen.values()) == ["a", "b"]
        for engine_id, name in chosen.items():
            if table[engine_id].run_id != name:
                table[engine_id] = replace(table[engine_id], run_id=name, since_ns=now)
        worked[chosen["works"]] += 1
        served = serve(served, {chosen["works"]: 4}, {"a": 1.0, "b": 1.0}, HOLD_MIN_NS)
    assert worked == {"a": 50, "b": 50}


def test_a_higher_priority_gets_the_engine_that_works():
    table = [EngineFacts("away", 4, unlent_ns=AWAY_NS), EngineFacts("works", 4, "low")]
    chosen = assign(table, [RunFacts("low", 4), RunFacts("high", 4, priority=1)], NOW)
    assert chosen == {"works": "high", "away": "low"}
    held = [EngineFacts("away", 4, "high", NOW, unlent_ns=AWAY_NS), EngineFacts("works", 4, "low")]
    assert assign(held, [RunFacts("low", 4), RunFacts("high", 4, priority=1)], NOW)["works"] == "high"


def test_an_engine_between_two_leases_is_not_away():
    table = [EngineFacts("e0", 4, "a", unlent_ns=AWAY_NS - 1), EngineFacts("e1", 4, "b")]
    assert assign(table, [RunFacts("a", 4), RunFacts("b", 4)], NOW) == {"e0": "a", "e1": "b"}
    assert assign(table, [RunFacts("a", 4), RunFacts("b", 4, served=100)], NOW) == {"e0": "a", "e1": "b"}


def test_a_switch_that_took_for_ever_holds_an_engine_for_no_longer_than_the_longest_hold():
    engine = EngineFacts("e0", 4, "low", NOW, switch_ns=10 * HOLD_MAX_NS)
    wanting = [RunFacts("low", 9), RunFacts("high", 9, priority=1)]
    assert assign([engine], wanting, NOW + HOLD_MAX_NS - 1) == {"e0": "low"}
    assert assign([engine], wanting, NOW + HOLD_MAX_NS) == {"e0": "high"}
