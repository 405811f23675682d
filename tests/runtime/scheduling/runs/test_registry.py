import re
import shutil

import pytest

from rose.runtime.scheduling.messages import OpenRun, PublishVersion
from rose.runtime.scheduling.refusals import RefusedError
from rose.runtime.scheduling.runs import registry
from rose.runtime.scheduling.runs.registry import NAMES_MAX, Runs, UnknownRunError
from rose.runtime.scheduling.runs.state import State

S = 1_000_000_000


@pytest.fixture
def state(tmp_path):
    state = State(tmp_path)
    yield state
    state.close()


@pytest.fixture
def runs(state):
    return Runs(state, 0, models=["tiny"], fleet_run_id="fleet")


def request(**fields):
    return OpenRun(**{"name": "GRPO on the lake", "model": "tiny", "team": "research", **fields})


def version(number, fence=1, url="http://a", token=None):
    return PublishVersion(fence=fence, version=number, url=url, token=token)


def test_ids_differ_and_can_stand_in_a_path_and_another_model_is_refused_by_both_names(runs):
    first, second = runs.open(request(), 0), runs.open(request(), 0)
    assert first.run_id.startswith("grpo-on-the-lake-")
    assert first.run_id != second.run_id
    assert runs.open(request(name="…"), 0).run_id.startswith("run-")
    with pytest.raises(RefusedError, match=r"'llama'.*tiny"):
        runs.open(request(model="llama"), 0)


def test_versions_only_go_up_and_keep_where_the_client_was(runs, state):
    run = runs.open(request(), 0)
    assert run.version_min == 0
    runs.publish(run.run_id, version(4), 0)
    runs.publish(run.run_id, version(4), 0)  # an answer that was lost
    assert run.version_min == 3
    with pytest.raises(RefusedError, match=r"version is 3.*at version 4"):
        runs.publish(run.run_id, version(3), 0)
    runs.publish(run.run_id, version(4, url="http://b"), 0)  # the same weights from another address
    assert run.facts.url == "http://b"
    runs.publish(run.run_id, version(4), 0, (), "127.0.0.1")  # the same weights, by a client elsewhere
    assert run.target.client_address == "127.0.0.1"
    assert Runs(state, 0).get(run.run_id).target == run.target


def test_a_url_that_leads_each_of_several_hosts_to_itself_is_refused(runs):
    for name in ("127.0.0.1", "127.1.2.3", "localhost", "[::1]"):
        run = runs.open(request(), 0)
        with pytest.raises(RefusedError, match=rf"{re.escape(name)}:5.*far, near.*`host`"):
            runs.publish(run.run_id, version(0, url=f"http://{name}:5"), 0, ["far", "near"], "127.0.0.1")
        assert run.facts.version is None
        runs.publish(run.run_id, version(0, url=f"http://{name}:5"), 0, ["near"], "127.0.0.1")
        assert run.facts.version == 0
    for url in ("http://10.0.0.7:5", "http://trainer:5", "s3://bucket/folder", "gs://bucket/folder"):
        run = runs.open(request(), 0)
        runs.publish(run.run_id, version(0, url=url), 0, ["far", "near"])
        assert run.facts.url == url


def test_who_resumes_a_run_takes_it_over(runs):
    run = runs.open(request(), 0)
    runs.publish(run.run_id, version(1), 0)
    resumed = runs.open(request(resume=run.run_id, weight=2.0), 0)
    assert (resumed.run_id, resumed.facts.fence, resumed.facts.version, resumed.facts.weight) == (run.run_id, 2, 1, 2.0)
    for call in (
        lambda: runs.publish(run.run_id, version(2), 0),
        lambda: runs.renew(run.run_id, 1, 0),
        lambda: runs.close(run.run_id, 1, "failed", None),
    ):
        with pytest.raises(RefusedError, match="its fence is"):
            call()
    runs.publish(run.run_id, version(2, fence=2), 0)
    unknown = rf"^fence is 7; run '{run.run_id}' has fence 2: .*resume"
    with pytest.raises(RefusedError, match=unknown):
        runs.renew(run.run_id, 7, 0)
    with pytest.raises(RefusedError, match=r"team is 'sales'.*'research'"):
        runs.open(request(resume=run.run_id, team="sales"), 0)
    with pytest.raises(UnknownRunError, match="unknown run"):
        runs.open(request(resume=run.run_id[:-1]), 0)


def test_a_run_that_is_not_heard_of_expires_and_can_be_resumed(runs, state):
    run = runs.open(request(expires_s=10), 0)
    runs.renew(run.run_id, 1, 8 * S)
    assert runs.expire(17 * S) == []
    assert runs.expire(18 * S) == [run]
    assert (run.facts.state, run.facts.outcome, run.facts.reason) == ("expired", "ended", "not heard of")
    with pytest.raises(RefusedError, match="expired"):
        runs.hear(run.run_id, 19 * S)
    runs.open(request(resume=run.run_id, expires_s=10), 20 * S)
    assert run.is_open
    assert runs.expire(29 * S) == []
    actions = [(event["action"], event["reason"]) for _, event in state.due()]
    assert actions == [("started", None), ("ended", "not heard of"), ("started", "resumed")]
    assert len({event["event_id"] for _, event in state.due()}) == 3


def test_a_client_that_goes_on_with_an_expired_run_does_not_take_it_from_a_newer_one(runs):
    run = runs.open(request(expires_s=1), 0)
    runs.expire(2 * S)
    runs.open(request(resume=run.run_id), 3 * S)
    for state in ("open", "expired"):
        assert run.facts.state == state
        with pytest.raises(RefusedError, match="its fence is 2, not 1"):
            runs.open(request(resume=run.run_id, fence=1, key="late"), 4 * S)
        runs.expire(100 * S)
    for _ in range(2):  # its own, and again since the answer was lost
        assert runs.open(request(resume=run.run_id, fence=2, key="own"), 100 * S).facts.fence == 3


def test_a_run_is_closed_once(runs, state):
    run = runs.open(request(), 0)
    for _ in range(2):
        runs.close(run.run_id, 1, "failed", "out of memory")
    assert [event["action"] for _, event in state.due()] == ["started", "failed"]
    with pytest.raises(RefusedError, match=r"closed \(failed\)"):
        runs.hear(run.run_id, 0)
    expired = runs.open(request(expires_s=1), 0)
    runs.expire(2 * S)
    runs.close(expired.run_id, 1, "ended", None)
    assert [event["action"] for _, event in state.due()][2:] == ["started", "ended"]


def left_by_killed(folder):
    return shutil.copytree(folder, folder / "left")


def test_all_of_it_is_there_after_a_restart(runs, state, tmp_path):
    run = runs.open(request(tags={"project": "x"}, expires_s=10), 0)
    runs.open(request(resume=run.run_id, expires_s=10), 0)
    runs.publish(run.run_id, version(7, fence=2, token="secret"), 0)
    runs.reach_step(run, 5)
    runs.note_adapters(run, {"policy-v7": 7})
    for number in range(2 * NAMES_MAX):
        runs.note_pulled(run, "/copy" if number % 2 else f"/copy-{number}", f"/weights/{number}")
    other = State(left_by_killed(tmp_path))
    again = Runs(other, 100 * S, models=["tiny"])
    facts = again.get(run.run_id).facts
    assert facts == run.facts
    assert (facts.adapters, facts.pulled["/copy"]) == ({"policy-v7": 7}, f"/weights/{2 * NAMES_MAX - 1}")
    assert len(facts.pulled) == NAMES_MAX
    assert again.get(run.run_id).left_ns(101 * S) == 9 * S  # it has its time anew
    assert "secret" not in repr(again.get(run.run_id))
    other.close()


def test_a_device_is_trained_on_by_the_run_that_was_opened_or_resumed_last(runs, state, tmp_path):
    first = runs.open(request(trainer_device="gpu-1"), 0)
    runs.expire(60 * S)
    second = runs.open(request(trainer_device="gpu-1"), 61 * S)
    elsewhere = runs.open(request(trainer_device="gpu-2"), 61 * S)
    assert runs.trainer_of("gpu-1") is second
    runs.open(request(resume=first.run_id, trainer_device="gpu-1"), 62 * S)
    assert second.is_open
    assert runs.trainer_of("gpu-1") is first
    runs.renew(second.run_id, 1, 63 * S, 30)
    assert runs.trainer_of("gpu-1") is first
    assert (runs.trainer_of("gpu-2"), runs.trainer_of("gpu-3")) == (elsewhere, None)
    other = State(left_by_killed(tmp_path))
    again = Runs(other, 0)
    assert again.trainer_of("gpu-1").run_id == first.run_id
    again.open(OpenRun(name="b", model="tiny", resume=second.run_id, trainer_device="gpu-1"), 0)
    assert again.trainer_of("gpu-1").run_id == second.run_id
    again.close(second.run_id, 2, "ended", None)
    assert again.trainer_of("gpu-1").run_id == first.run_id
    other.close()


def test_runs_that_ended_are_forgotten_some_day_whichever_way_they_did(runs, state, monkeypatch):
    monkeypatch.setattr(registry, "ENDED_MAX", 2)
    opened = [runs.open(request(expires_s=100), 0) for _ in range(3)]
    late = [runs.open(request(expires_s=1), 0) for _ in range(2)]
    runs.close(opened[1].run_id, 1, "ended", None)
    assert runs.expire(2 * S) == late
    assert runs.forget() == [opened[1].run_id]
    # Who ended first goes first, and not who was opened first.
    runs.close(opened[0].run_id, 1, "ended", None)
    assert runs.forget() == [late[0].run_id]
    with pytest.raises(UnknownRunError):
        runs.open(request(resume=late[0].run_id), 2 * S)
    assert runs.open(request(resume=late[1].run_id), 2 * S).is_open
    kept = {opened[0].run_id, opened[2].run_id, late[1].run_id}
    assert {run.run_id for run in runs} == kept
    assert {facts.run_id for facts in state.runs()} == kept
    # While the disk refuses, nothing is forgotten.
    runs.close(opened[2].run_id, 1, "ended", None)
    runs.close(late[1].run_id, 2, "ended", None)
    state._connection.execute("PRAGMA query_only = ON")
    assert runs.forget() == []
    assert runs.get(opened[0].run_id) is opened[0]
    state._connection.execute("PRAGMA query_only = OFF")
    assert runs.forget() == [opened[0].run_id]


def test_a_run_that_is_opened_again_under_its_key_is_the_same_one(runs, state, tmp_path):
    run = runs.open(request(key="k", expires_s=10), 0)
    assert runs.open(request(key="k", expires_s=10), 8 * S) is run
    assert (run.facts.fence, run.left_ns(8 * S)) == (1, 10 * S)
    assert runs.open(request(key="other", expires_s=10), 0) is not run
    with pytest.raises(RefusedError, match=f"key is 'k'.*{run.run_id}.*other fields"):
        runs.open(request(key="k", expires_s=11), 0)
    again = Runs(State(left_by_killed(tmp_path)), 0, models=["tiny"], fleet_run_id="fleet")
    assert again.open(request(key="k", expires_s=10), 0).facts == run.facts
    assert [event["action"] for _, event in state.due()] == ["started", "started"]
    # A run that expired before its answer came is named to the client that asks again.
    runs.expire(100 * S)
    assert runs.open(request(key="k", expires_s=10), 101 * S) is run
    assert run.facts.state == "expired"


def test_a_run_that_is_resumed_again_under_the_same_key_is_taken_over_once(runs):
    run = runs.open(request(key="opened"), 0)
    for _ in range(2):
        assert runs.open(request(resume=run.run_id, key="resumed"), 0).facts.fence == 2
    # The earlier client that asks again does not get its successor's fence.
    with pytest.raises(RefusedError, match="its fence is"):
        runs.open(request(key="opened"), 0)
    for number in range(registry.KEYS_MAX):
        runs.open(request(resume=run.run_id, key=f"resumed-{number}"), 0)
    assert len(run.facts.keys) == registry.KEYS_MAX
