from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.policy.sharing import (
    AWAY_NS,
    HOLD_MAX_NS,
    HOLD_MIN_NS,
    HOLD_SWITCHES,
    EngineFacts,
    RunFacts,
    assign,
    hold_ns,
    may_change,
    pause_ns,
    serve,
)

NAMES = ("a", "b", "c", "d")
MODELS = st.sampled_from(["A", "B"])
SECOND = 1_000_000_000
NOW = 100 * HOLD_MIN_NS
runs = st.lists(
    st.builds(
        RunFacts,
        run_id=st.sampled_from(NAMES),
        turns=st.integers(0, 30),
        weight=st.floats(0.1, 10),
        priority=st.integers(-1, 1),
        served=st.floats(0, 100),
        model=MODELS,
        quiet_ns=st.one_of(st.none(), st.integers(0, HOLD_MIN_NS)),
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
        unable_ns=st.sampled_from([0, AWAY_NS]),
        model=MODELS,
        model_since_ns=st.integers(NOW - 30 * HOLD_MIN_NS, NOW),
        start_ns=st.integers(0, 2 * HOLD_MIN_NS),
        unstarted=st.sampled_from([None, None, "A", "B"]),
    ),
    max_size=8,
    unique_by=lambda engine: engine.engine_id,
)


def held(chosen, table, run_id):
    return [table[engine_id] for engine_id, run in chosen.items() if run == run_id]


def of_one_model(facts):
    return [replace(one, model=None) for one in facts]


def may_have(engine, runs, run):
    return run.model != engine.unstarted and (run.model == engine.model or may_change(engine, runs, NOW))


@given(engines, runs)
def test_an_assignment_is_sound(engines, runs):
    by_id = {run.run_id: run for run in runs}
    engines = [replace(one, model=by_id[one.run_id].model) if one.run_id in by_id else one for one in engines]
    chosen = assign(engines, runs, NOW)
    table = {engine.engine_id: engine for engine in engines}
    assert chosen.keys() <= table.keys()
    assert set(chosen.values()) <= by_id.keys()
    assert chosen == assign(list(reversed(engines)), list(reversed(runs)), NOW)
    for engine in engines:
        run = by_id.get(engine.run_id)
        if (
            run is not None
            and run.turns
            and NOW - engine.since_ns < hold_ns(engine.switch_ns)
            and run.model != engine.unstarted
        ):
            assert chosen[engine.engine_id] == run.run_id, "taken before its hold was over"
        if run is not None and chosen.get(engine.engine_id) != run.run_id:
            assert by_id[chosen[engine.engine_id]].turns, "taken for nobody"
        taker = by_id.get(chosen.get(engine.engine_id))
        assert taker is None or taker == run or may_have(engine, by_id, taker)
    # No engine stands by that it may have while a run has more turns than engines.
    for engine in engines:
        if not (run := by_id.get(chosen.get(engine.engine_id))) or not run.turns:
            for other in runs:
                if may_have(engine, by_id, other):
                    assert len(held(chosen, table, other.run_id)) >= other.turns


@given(engines, runs)
def test_what_was_chosen_is_chosen_again(engines, runs):
    runs = [replace(run, served=0.0) for run in of_one_model(runs)]
    free = [replace(engine, since_ns=0, capacity=4) for engine in of_one_model(engines)]
    once = assign(free, runs, NOW)
    moved = [replace(engine, run_id=once.get(engine.engine_id)) for engine in free]
    assert assign(moved, runs, NOW) == once


@given(engines, runs)
def test_a_higher_priority_has_room_before_a_lower_one_has_any(engines, runs):
    free = [replace(engine, run_id=None) for engine in of_one_model(engines)]
    runs = of_one_model(runs)
    chosen = assign(free, runs, NOW)
    table = {engine.engine_id: engine for engine in free}
    for run in runs:
        if sum(engine.capacity for engine in held(chosen, table, run.run_id)) < run.turns:
            assert not any(held(chosen, table, other.run_id) for other in runs if other.priority < run.priority)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(0.25, 4), min_size=2, max_size=4), st.integers(1, 5), st.integers(1, 3))
def test_shares_come_to_the_weights(weights, count, capacity):
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
        served = serve(served, slots, wanting, HOLD_MIN_NS)
    for name in names:
        due = by_name[name] / sum(weights)
        assert abs(had[name] / (rounds * count * capacity) - due) < 0.03, (had, by_name)


def test_a_run_that_comes_back_is_owed_nothing():
    served = serve({}, {"a": 8}, [RunFacts("a", 9)], 10**12)
    served = serve(served, {"a": 8}, [RunFacts("a", 9), RunFacts("b", 9)], 10**9)
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
    table = {"works": EngineFacts("works", 4), "away": EngineFacts("away", 4, unable_ns=AWAY_NS)}
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
        served = serve(served, {chosen["works"]: 4}, [RunFacts("a", 4), RunFacts("b", 4)], HOLD_MIN_NS)
    assert worked == {"a": 50, "b": 50}


def test_a_higher_priority_gets_the_engine_that_works():
    table = [EngineFacts("away", 4, unable_ns=AWAY_NS), EngineFacts("works", 4, "low")]
    chosen = assign(table, [RunFacts("low", 4), RunFacts("high", 4, priority=1)], NOW)
    assert chosen == {"works": "high", "away": "low"}
    held = [EngineFacts("away", 4, "high", NOW, unable_ns=AWAY_NS), EngineFacts("works", 4, "low")]
    assert assign(held, [RunFacts("low", 4), RunFacts("high", 4, priority=1)], NOW)["works"] == "high"


def test_an_engine_between_two_leases_is_not_away():
    table = [EngineFacts("e0", 4, "a", unable_ns=AWAY_NS - 1), EngineFacts("e1", 4, "b")]
    assert assign(table, [RunFacts("a", 4), RunFacts("b", 4)], NOW) == {"e0": "a", "e1": "b"}
    assert assign(table, [RunFacts("a", 4), RunFacts("b", 4, served=100)], NOW) == {"e0": "a", "e1": "b"}


def test_a_switch_that_took_for_ever_holds_an_engine_for_no_longer_than_the_longest_hold():
    engine = EngineFacts("e0", 4, "low", NOW, switch_ns=10 * HOLD_MAX_NS)
    wanting = [RunFacts("low", 9), RunFacts("high", 9, priority=1)]
    assert assign([engine], wanting, NOW + HOLD_MAX_NS - 1) == {"e0": "low"}
    assert assign([engine], wanting, NOW + HOLD_MAX_NS) == {"e0": "high"}


START_NS, LOOK_S = 30 * SECOND, 5


class Simulated:
    """Engines that change model in START_NS. `served_s` is the time of each run, `changes` when engines changed."""

    def __init__(self, count, models, weights, turns):
        usual = {"capacity": 4, "model": "A", "model_since_ns": -HOLD_MAX_NS, "start_ns": START_NS}
        self.table = {f"e{n}": EngineFacts(f"e{n}", **usual) for n in range(count)}
        self.models, self.weights, self.turns = models, weights, turns
        self.busy_ns, self.served, self.served_s = {}, {}, dict.fromkeys(models, 0)
        self.changes = []

    def run(self, seconds):
        for second in range(0, seconds, LOOK_S):
            self.step(second * SECOND)
        return self

    def step(self, now):
        turns = {name: self.turns(name, now) for name in self.models}
        self.busy_ns |= {name: now for name, count in turns.items() if count}
        runs = [
            RunFacts(
                name,
                count,
                self.weights[name],
                served=self.served.get(name, 0.0),
                model=self.models[name],
                quiet_ns=now - self.busy_ns[name] if name in self.busy_ns else None,
            )
            for name, count in turns.items()
        ]
        engines = [
            replace(engine, model_since_ns=now) if self.changing(engine, now) else engine
            for engine in self.table.values()
        ]
        chosen = assign(engines, runs, now)
        slots = dict.fromkeys(self.models, 0)
        for engine in self.table.values():
            name = chosen.get(engine.engine_id)
            if name is None:
                continue
            slots[name] += 4
            self.served_s[name] += LOOK_S * (turns[name] > 0 and not self.changing(self.assign(engine, name, now), now))
        self.served = serve(self.served, slots, runs, LOOK_S * SECOND, pause_ns(engines, runs))

    def assign(self, engine, name, now):
        if name != engine.run_id:
            engine = replace(engine, run_id=name, since_ns=now)
        if self.models[name] != engine.model:
            engine = replace(engine, model=self.models[name], model_since_ns=now + START_NS)
            self.changes.append((now, engine.engine_id))
        self.table[engine.engine_id] = engine
        return engine

    def changing(self, engine, now):
        return now < engine.model_since_ns


@settings(max_examples=3, deadline=None)
@given(st.lists(st.floats(0.5, 2), min_size=2, max_size=3), st.integers(1, 3))
def test_models_share_by_weight_and_spend_a_tenth_of_the_time_on_changes_at_most(weights, count):
    names = NAMES[: len(weights)]
    models = {name: "AB"[number % 2] for number, name in enumerate(names)}
    seconds = 20_000
    fleet = Simulated(count, models, dict(zip(names, weights, strict=True)), lambda _name, _now: 1000).run(seconds)
    had = sum(fleet.served_s.values())
    for name, weight in zip(names, weights, strict=True):
        assert abs(fleet.served_s[name] / had - weight / sum(weights)) < 0.05, (fleet.served_s, weights)
    assert had >= 0.9 * seconds * count
    for engine_id in fleet.table:
        times = [at for at, changed in fleet.changes if changed == engine_id]
        assert all(after - at >= (1 + HOLD_SWITCHES) * START_NS for at, after in pairwise(times))


def test_a_model_without_turns_gives_its_engines_up_once_a_change_would_have_been_over():
    fleet = Simulated(
        2, {"a": "A", "b": "B"}, {"a": 1, "b": 1}, lambda name, now: 9 * (name == "b" or now < 100 * SECOND)
    ).run(600)
    assert fleet.changes == [(0, "e1"), (95 * SECOND + START_NS, "e0")]
    assert fleet.served_s == {"a": 100, "b": (600 - 30) + (600 - 155)}


def test_no_engine_changes_model_for_a_pause_that_is_shorter_than_a_change():
    """`a` and `b` train for 20 s after each 40 s, and one of them has an engine while the other trains."""
    fleet = Simulated(
        1,
        {"a": "A", "b": "B"},
        {"a": 3.0, "b": 1.0},
        lambda name, now: 9 * ((now + 30 * SECOND * (name == "b")) % (60 * SECOND) < 40 * SECOND),
    ).run(40_000)
    assert len(fleet.changes) <= 1 + 40_000 * SECOND // (HOLD_SWITCHES * START_NS)
    assert 2.7 < fleet.served_s["a"] / fleet.served_s["b"] < 3.3
    assert sum(fleet.served_s.values()) > 0.88 * 40_000 * 40 / 60


def test_a_run_takes_an_engine_of_its_model_before_any_other():
    table = [EngineFacts("e0", 4, model="A"), EngineFacts("e1", 4, "c", model="B"), EngineFacts("e2", 4, model="B")]
    runs = [RunFacts("b", 1, model="B"), RunFacts("c", 1, model="B")]
    assert assign(table, runs, NOW) == {"e1": "c", "e2": "b"}
    wanting = [*runs, RunFacts("d", 1, model="B")]
    assert assign(table, wanting, NOW) == {"e0": "d", "e1": "c", "e2": "b"}


@given(engines, runs)
def test_models_do_not_matter_where_there_is_one(engines, runs):
    runs = [replace(run, model="A") for run in runs]
    same = [replace(engine, model="A") for engine in engines]
    plain = [replace(engine, model_since_ns=0, start_ns=0) for engine in same]
    assert assign(same, runs, NOW) == assign(plain, runs, NOW)
