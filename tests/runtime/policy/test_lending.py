from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy.lending import EngineState, LendingFacts, Reason, why_not_lent

MINUTE = {"serving_ns": 57_600_000_000, "observed_ns": 60_000_000_000}
WORKS = EngineState(
    engine_id="e", borrowed=True, leased=True, run_id="r", held_run_id="r", version=5, version_min=5, turns=3
)


def reason(engine=WORKS, **facts):
    return why_not_lent(LendingFacts(engine=engine, **facts))


@pytest.mark.parametrize(
    ("state", "facts", "name", "part"),
    [
        ({}, {"drained": True, "drain_reason": "new driver"}, "drained", "new driver"),
        ({}, {"silent_ns": 12_000_000_000}, "agent_silent", "12 s"),
        ({}, {"refused": Reason("serving_late", "serving is late")}, "serving_late", "serving is late"),
        (None, {}, "no_engine", "no rollout engine"),
        ({"start": "it changes to model 'm'"}, {}, "model_change", "'m'"),
        ({"fault": "it is being started"}, {}, "engine_away", "being started"),
        ({"failed": "no route", "turns": 0}, {}, "sync_failed", "no route"),
        ({"failed": "no answer", "version": 4}, MINUTE, "sync_failed", "serving was at work 96% of the last minute"),
        ({"held_run_id": "other"}, MINUTE, "sync", "96%"),
        ({"version": 4}, MINUTE, "sync", "turns want 5 or newer; serving was at work 96% of the last minute"),
        ({"leased": False}, {}, "no_lease", "its agent"),
        ({"leased": False, "turns": 0}, {}, "no_demand", "r has no turns"),
        ({"run_id": None, "turns": 0}, {}, "no_demand", "no run"),
        ({"run_id": None, "turns": 7}, {}, "other_engines", "7 turns"),
        ({"works": False}, MINUTE, "no_slack", "serving was at work 96% of the last minute"),
        ({"works": False}, {}, "no_slack", "serving is at work"),
        ({"works": False}, {"serving_ns": 3, "observed_ns": 4_000_000_000}, "no_slack", "0% of the last 4 s"),
    ],
)
def test_each_reason_has_a_name_for_the_ledger_and_words_for_the_owner(state, facts, name, part):
    found = reason(None if state is None else replace(WORKS, **state), **facts)
    assert found.name == name
    assert part in found.text


def test_an_engine_that_works_needs_no_reason():
    assert reason() is None
    assert reason(replace(WORKS, borrowed=False, leased=False)) is None
    assert reason(replace(WORKS, failed="no route")) is None, "its turns accept the version that it has"


def test_serving_does_not_explain_an_engine_of_its_own_device():
    dedicated = replace(WORKS, borrowed=False, leased=False, failed="no route", version=4)
    assert "serving" not in reason(dedicated, **MINUTE).text


@given(
    st.builds(
        EngineState,
        engine_id=st.just("e"),
        borrowed=st.booleans(),
        leased=st.booleans(),
        works=st.booleans(),
        fault=st.none() | st.just("away"),
        failed=st.none() | st.just("no route"),
        run_id=st.sampled_from([None, "r"]),
        held_run_id=st.sampled_from([None, "r", "s"]),
        version=st.integers(0, 2),
        version_min=st.integers(0, 2),
        turns=st.integers(1, 3),
    )
)
def test_no_demand_is_never_the_reason_while_turns_are_open(engine):
    found = reason(engine)
    assert found is None or found.name != "no_demand"
    if engine.borrowed and not engine.leased:
        assert found is not None
