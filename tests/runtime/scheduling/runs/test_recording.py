import shutil
import time

import msgspec
import pytest

from rose.clock import monotonic_ns
from rose.events import Clock
from rose.ledger.writer import LedgerWriter
from rose.runtime.scheduling.messages import OpenRun
from rose.runtime.scheduling.refusals import RefusedError, RequestError
from rose.runtime.scheduling.runs.recorder import Recorder, client_event, turn_events
from rose.runtime.scheduling.runs.registry import Runs
from rose.runtime.scheduling.runs.state import State
from rose.runtime.scheduling.turns.request import read
from rose.runtime.scheduling.turns.turns import Turn
from tests.ledger.conftest import ask
from tests.runtime.scheduling.stand_ins import VERDICT, beat, gateway, until


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "lease"}, "kind is 'lease'; a client records step, trajectory, verdict"),
        ({"kind": None}, "kind is None"),
        ({"event_id": None}, "event_id is None"),
        ({"event_id": ""}, "event_id is ''"),
        ({"run_id": "other"}, "run_id is 'other'"),
        ({"colour": "red"}, "colour"),
        ({"verifier": "x" * 1025}, "field 'verifier' of an event must be a number or a text of at most 1024"),
        ({"verifier": ["x"]}, "field 'verifier' of an event"),
        ({"x" * 1025: 1}, "of an event must be"),
        ({"reward": "much"}, "reward"),
        ({"reward": None}, "reward"),
        ({"step": -1}, "step"),
    ],
)
def test_what_a_client_may_not_record_is_refused_by_name(changes, named):
    with pytest.raises(RequestError) as refused:
        client_event("r", VERDICT | changes)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("repeated", "faulty"),
    [({"at_us": 1_800_000_000_000_000}, []), ({"reward": 0.0, "accepted": False}, [("verdict", "v1")])],
    ids=["the same", "other values"],
)
async def test_a_repeated_event_counts_once_and_is_named_if_it_differs(ledger, repeated, faulty):
    with LedgerWriter.open(ledger, "controller", "fleet") as writer:
        recorder = Recorder(writer, State(None), "fleet")
        assert await recorder.record("r", [VERDICT, VERDICT | {"event_id": "v2", "step": 4}]) is None
        await recorder.record("r", [VERDICT | repeated])
    verdicts = "SELECT run_id, event_id, reward, accepted FROM verdict ORDER BY event_id"
    assert ask(ledger, verdicts) == [("r", "v1", 1.0, True), ("r", "v2", 1.0, True)]
    assert ask(ledger, "SELECT kind, value FROM faulty_event") == faulty


async def test_events_of_a_run_are_recorded_by_the_process_after_a_ledger_that_was_away(ledger, tmp_path):
    folder = tmp_path / "state"
    state = State(folder)
    run = Runs(state, 0, fleet_run_id="fleet").open(
        OpenRun(name="grpo", model="tiny", team="research", tags={"project": "x"}), 0
    )
    state.close()
    turn = Turn(read(b'{"input_ids": [1], "rose": {"trajectory_id": "t", "group_id": "g", "step": 2}}'), 0, "r")
    numbers = dict.fromkeys(("policy_version", "prompt_tokens", "cached_tokens", "output_tokens"), 4)
    numbers |= {"queue_ns": 0, "duration_ns": 5}
    attempt = {"engine_id": "e", "device_id": "d", "lease_id": None, "placement": "queue", **numbers}
    turn.attempts = [attempt | {"outcome": outcome} for outcome in ("preempted", "completed")]
    # A later version, which this one comes after, may have kept more.
    kept = msgspec.json.encode([{**msgspec.to_builtins(event), "later": 1} for event in turn_events(turn, "fleet")])

    for number in range(2):  # and once more: nothing counts twice
        state = State(folder)
        with LedgerWriter.open(ledger, "controller", "fleet") as writer:
            recorder = Recorder(writer, state, "fleet")
            recorder.catch_up([kept])
            await until(lambda state=state: not state.due())
            await recorder.close()
        if number == 0:
            Runs(state, 0, fleet_run_id="fleet").close(run.run_id, 1, "ended", None)
        state.close()
    tags = '{"project": "x", "team": "research"}'
    assert ask(ledger, "SELECT run_id, status, name, tags_json FROM run") == [(run.run_id, "ended", "grpo", tags)]
    turns = "SELECT run_id, group_id, step, turn, attempt, outcome, answer_tokens FROM turn ORDER BY attempt"
    assert ask(ledger, turns) == [("r", "g", 2, 0, 0, "preempted", None), ("r", "g", 2, 0, 1, "completed", None)]


async def test_a_ledger_that_refuses_is_a_failure_until_it_takes_events_again(ledger, tmp_path):
    with LedgerWriter.open(ledger, "controller", "fleet", flush_interval_s=0.02) as writer:
        recorder = Recorder(writer, State(None), "fleet")
        assert recorder.failure is None
        shutil.move(ledger / "live" / "controller", tmp_path / "away")
        with pytest.raises(RefusedError, match="cannot write to"):
            await recorder.record("r", [VERDICT])
        recorder.note(Clock(host="h", action="heard", offset_ns=1))
        assert "cannot write to" in recorder.failure
        shutil.move(tmp_path / "away", ledger / "live" / "controller")
        await until(lambda: recorder.failure is None)
        await recorder.record("r", [VERDICT])
    assert ask(ledger, "SELECT count(*) FROM verdict") == [(1,)]


async def test_how_far_a_host_s_clock_is_off_is_recorded(ledger):
    with LedgerWriter.open(ledger, "controller", "fleet") as writer:
        async with gateway(writer=writer, fleet_run_id="fleet") as (session, _):
            for _ in range(2):
                now_ns = time.time_ns()
                ahead = {"monotonic_ns": monotonic_ns(), "utc_ns": now_ns + 3_000_000_000, "device_time_ns": now_ns}
                await beat(session, host="node-3", clock=ahead)
    columns = "run_id, device_id, host, action, offset_ns, device_time_offset_ns"
    ((*labels, offset_ns, device_time_offset_ns),) = ask(ledger, f"SELECT {columns} FROM clock ORDER BY seq LIMIT 1")
    assert labels == ["fleet", "d", "node-3", "heard"]
    assert 2e9 < offset_ns < 3e9
    assert offset_ns - device_time_offset_ns == 3_000_000_000


async def test_without_a_writer_nothing_is_recorded():
    recorder = Recorder(None, State(None), None)
    recorder.catch_up([b"[]"])
    assert await recorder.record("r", [VERDICT]) is None
    incomplete = {name: value for name, value in VERDICT.items() if name != "verifier"}
    for event, field in ((VERDICT | {"kind": "run"}, "kind"), (incomplete, "verifier")):
        with pytest.raises(RequestError, match=field):
            await recorder.record("r", [event])
