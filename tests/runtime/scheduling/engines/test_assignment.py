from collections import defaultdict

import pytest

from rose.runtime.policy.sharing import AWAY_NS, HOLD_MAX_NS, HOLD_MIN_NS, HOLD_SWITCHES
from rose.runtime.scheduling.engines.assignment import PEAK_NS, Assignment, Load
from rose.runtime.scheduling.messages import Heartbeat, OpenRun, PublishVersion
from rose.runtime.scheduling.runs.registry import Runs
from rose.runtime.scheduling.runs.state import State
from rose.runtime.scheduling.turns.request import read
from rose.runtime.scheduling.turns.turns import Turn
from rose.runtime.scheduling.workers import SILENCE_MAX_NS, InFlight, WorkerTable
from tests.runtime.scheduling.stand_ins import report

LATE = 10 * HOLD_MIN_NS


class Fleet:
    def __init__(self):
        self.runs, self.table, self.loads = Runs(State(None), 0), WorkerTable(), defaultdict(Load)
        self.assignment = Assignment(self.table, self.runs, self.loads)

    def update(self, now_ns):
        self.assignment.update(now_ns)
        return self.assigned()

    def hear(self, now_ns, *engine_ids, **fields):
        reports = [report("http://x", engine_id, **fields) for engine_id in engine_ids]
        self.table.hear(Heartbeat(device_id="d", engines=reports), now_ns)

    def open(self, name, version=0, **fields):
        run = self.runs.open(OpenRun(**{"name": name, "model": "m", "expires_s": 3600, **fields}), 0)
        if version is not None:
            request = PublishVersion(fence=1, version=version, url=f"http://{name}", token=name)
            self.runs.publish(run.run_id, request, 0)
        return run.run_id

    def begin(self, run_id, now_ns):
        turn = Turn(read(b'{"input_ids": [1]}'), now_ns, run_id)
        self.loads[run_id].begin(turn, now_ns)
        return turn

    def assigned(self):
        return {worker.report.engine_id: worker.assigned for worker in self.table.values()}


@pytest.fixture
def fleet():
    return Fleet()


def test_an_engine_without_a_run_is_left_as_it_is(fleet):
    fleet.hear(0, "e0")
    fleet.open("idle")
    fleet.begin(fleet.open("unpublished", None), 0)
    assert fleet.assignment.update(0) == []
    assert fleet.assigned() == {"e0": None}
    assert fleet.assignment.target(fleet.table["e0"]) is None


def test_turns_of_the_run_before_leave_before_the_engine_is_told_of_the_next(fleet):
    fleet.hear(0, "e0")
    first, second = fleet.open("a", 4), fleet.open("b", 7)
    turn = fleet.begin(first, 0)
    fleet.assignment.update(0)
    worker = fleet.table["e0"]
    target = fleet.assignment.target(worker)
    assert (target.run_id, target.version, target.url, target.token) == (first, 4, "http://a", "a")
    assert "token='a'" not in repr(target)
    fleet.hear(10, "e0", run_id=first, policy_version=4)
    assert worker.serves(first)
    assert worker.switch_ns == 10
    item = InFlight("r", 1, 0, run_id=first)
    worker.take(item)
    fleet.loads[first].end(turn)
    fleet.begin(second, PEAK_NS)
    fleet.hear(LATE, "e0", run_id=first, policy_version=4)
    assert fleet.assignment.update(LATE) == [(worker, item)]
    assert fleet.assigned() == {"e0": second}
    assert not worker.serves(first)
    assert not worker.serves(second)
    assert fleet.assignment.target(worker) is None
    worker.release(item)
    assert fleet.assignment.target(worker).version == 7


def test_an_engine_changes_model_after_the_turns_of_the_run_before_and_before_its_weights_come(fleet):
    up = {"model": "A", "start_ns": HOLD_MIN_NS}
    fleet.hear(0, "e0", **up)
    first, second = fleet.open("a", model="A"), fleet.open("b", 7, model="B")
    turn = fleet.begin(first, 0)
    assert fleet.update(0) == {"e0": first}
    worker = fleet.table["e0"]
    assert fleet.assignment.models([worker]) == {"e0": "A"}
    fleet.hear(1, "e0", run_id=first, **up)
    item = InFlight("r", 1, 0, run_id=first)
    worker.take(item)
    fleet.loads[first].end(turn)
    fleet.begin(second, PEAK_NS)
    # A pause, as far as anybody knows: a change would take longer.
    fleet.hear(HOLD_MIN_NS - 1, "e0", run_id=first, **up)
    assert fleet.update(HOLD_MIN_NS - 1) == {"e0": first}
    fleet.hear(LATE, "e0", run_id=first, **up)
    assert fleet.assignment.update(LATE) == [(worker, item)]
    assert (fleet.assigned(), fleet.assignment.models([worker])) == ({"e0": second}, {})
    worker.release(item)
    assert fleet.assignment.models([worker]) == {"e0": "B"}
    assert fleet.assignment.target(worker) is None
    # It is the second run's while it starts, however long that takes.
    fleet.begin(first, LATE)
    for now_ns in range(LATE, 30 * LATE, LATE):
        fleet.hear(now_ns, "e0", model="A", alive=False)
        assert fleet.update(now_ns) == {"e0": second}
        assert fleet.assignment.target(worker) is None
    fleet.hear(30 * LATE, "e0", model="B", start_ns=29 * LATE)
    assert fleet.assignment.target(worker).version == 7
    assert worker.start_ns == 29 * LATE
    # Nor is it taken before the weights have come and it has worked.
    hold_ns = min(HOLD_SWITCHES * 29 * LATE, HOLD_MAX_NS)
    for now_ns in range(30 * LATE, 60 * LATE, LATE):
        fleet.hear(now_ns, "e0", model="B", start_ns=29 * LATE)
        assert fleet.update(now_ns) == {"e0": second}
    fleet.hear(60 * LATE, "e0", model="B", run_id=second)
    for now_ns, run_id in ((60 * LATE + hold_ns - 1, second), (60 * LATE + hold_ns, first)):
        fleet.hear(now_ns, "e0", model="B", run_id=second)
        assert fleet.update(now_ns) == {"e0": run_id}


def test_an_engine_that_does_not_start_with_a_model_works_for_runs_of_another(fleet):
    first, second = fleet.open("a", model="A"), fleet.open("b", model="B")
    fleet.hear(LATE, "e0", "e1", model="A", start_ns=1)
    for run_id in (first, second):
        fleet.begin(run_id, LATE)
    assert fleet.update(LATE) == {"e0": first, "e1": second}
    failed = {"model": "A", "alive": False, "unstarted": "B"}
    now_ns = LATE + HOLD_MIN_NS
    fleet.hear(now_ns, "e1", **failed)
    fleet.hear(now_ns, "e0", model="A", start_ns=1)
    fleet.update(now_ns)
    assert fleet.update(now_ns) == {"e0": second, "e1": first}, "who was served less chooses first"
    assert fleet.assignment.models(fleet.table.values()) == {"e0": "B", "e1": "A"}


def test_an_engine_that_is_silent_stays_with_its_run_while_there_is_one(fleet):
    fleet.hear(0, "e0")
    run_id = fleet.open("a")
    fleet.begin(run_id, 0)
    fleet.assignment.update(0)
    fleet.assignment.update(2 * SILENCE_MAX_NS)
    assert fleet.assigned() == {"e0": run_id}
    fleet.runs.close(run_id, 1, "ended", None)
    fleet.assignment.update(2 * SILENCE_MAX_NS)
    assert fleet.assigned() == {"e0": None}


def test_an_engine_is_assigned_by_what_it_holds_unless_it_is_drained(fleet):
    fleet.hear(0, "e0", "e1")
    run_id = fleet.open("a")
    fleet.hear(0, "e1", run_id=run_id)
    fleet.begin(run_id, 0)
    fleet.assignment.update(0)
    # One turn wants one engine, and e1 holds its weights already.
    assert fleet.assigned() == {"e0": None, "e1": run_id}
    fleet.table["e0"].drained = True
    fleet.begin(run_id, 0)
    fleet.assignment.update(0)
    assert fleet.assigned() == {"e0": None, "e1": run_id}


def test_a_run_whose_trajectories_think_for_a_moment_keeps_its_engines(fleet):
    fleet.hear(0, "e0")
    first, second = fleet.open("a"), fleet.open("b")
    turn = fleet.begin(first, 0)
    fleet.assignment.update(0)
    fleet.loads[first].end(turn)
    fleet.begin(second, 1)
    fleet.assignment.update(PEAK_NS - 1)
    assert fleet.assigned() == {"e0": first}
    fleet.hear(PEAK_NS + 1, "e0")
    fleet.assignment.update(PEAK_NS + 1)
    assert fleet.assigned() == {"e0": second}


def test_how_long_an_engine_takes_to_its_run_is_counted_from_its_own_start(fleet):
    hour_ns = 3_600_000_000_000
    fleet.hear(0, "e0")
    run_id = fleet.open("a")
    fleet.begin(run_id, 0)
    fleet.assignment.update(0)
    fleet.hear(10, "e0", run_id=run_id)
    fleet.hear(6 * hour_ns, "e0", alive=False)
    fleet.hear(6 * hour_ns + 100, "e0")
    fleet.hear(6 * hour_ns + 130, "e0", run_id=run_id)
    assert fleet.assigned() == {"e0": run_id}
    assert fleet.table["e0"].switch_ns == 30


def test_a_run_with_nothing_but_an_engine_that_serving_keeps_is_not_served(fleet):
    first, second = fleet.open("a"), fleet.open("b")
    for run_id in (first, second):
        fleet.begin(run_id, 0)
    now_ns, works = AWAY_NS, set()
    for _ in range(4):
        fleet.hear(now_ns, "kept", borrowed=True)
        fleet.hear(now_ns, "works")
        fleet.assignment.update(now_ns)
        works.add(fleet.assigned()["works"])
        # Before it is taken for silent, and until its hold is over.
        for _ in range(HOLD_MIN_NS // SILENCE_MAX_NS + 1):
            now_ns += SILENCE_MAX_NS // 2
            fleet.hear(now_ns, "kept", borrowed=True)
            fleet.hear(now_ns, "works")
            fleet.assignment.update(now_ns)
            now_ns += SILENCE_MAX_NS // 2
    assert works == {first, second}


def test_an_engine_whose_syncs_fail_is_no_share_of_its_run(fleet):
    """Each new version clears the failure for a moment."""
    first, second = fleet.open("a"), fleet.open("b")
    for run_id in (first, second):
        fleet.begin(run_id, 0)
    works, look_ns = [], SILENCE_MAX_NS // 2
    for number in range(60):
        now_ns = number * look_ns
        fleet.hear(now_ns, "fails", failed="no answer" if number % 3 else None)
        fleet.hear(now_ns, "works", run_id=fleet.table["works"].assigned if number else None)
        works.append(fleet.update(now_ns)["works"])
    assert set(works[: AWAY_NS // look_ns]) == {works[0]}
    assert set(works) == {first, second}
    fleet.hear(60 * look_ns, "fails", run_id=fleet.assigned()["fails"])
    assert fleet.table["fails"].failed_ns == 0


def test_an_engine_works_for_as_long_as_its_last_lease_is_not_long_ago(fleet):
    fleet.hear(AWAY_NS, "e0", borrowed=True)
    worker = fleet.table["e0"]
    assert worker.unable_ns(AWAY_NS) >= AWAY_NS
    fleet.hear(2 * AWAY_NS, "e0", borrowed=True, lease_id="L1", lease_left_ns=1)
    assert worker.unable_ns(2 * AWAY_NS + 5) == 0
    fleet.hear(2 * AWAY_NS + 7, "e0", borrowed=True)
    assert worker.unable_ns(2 * AWAY_NS + 9) == 9
    fleet.hear(2 * AWAY_NS + 10, "e1")
    assert fleet.table["e1"].unable_ns(9 * AWAY_NS) == 0
