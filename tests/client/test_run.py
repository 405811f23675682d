import asyncio
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from rose import client
from rose.client.publishing import Publication
from rose.events import Turn
from rose.ledger.files.layout import LedgerError
from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.gateway import paths
from tests.client.fleet import MODEL, Engine, Recorded, fleet


class Announced:
    """Stands for the trainer's weight server: a version is published as soon as it is announced."""

    url, token, signer = "http://127.0.0.1:9", "secret", "a" * 64

    def __init__(self):
        self.newest = None

    def latest(self):
        return self.newest

    def publish(self, weights, version):
        self.newest = version
        return Publication(version=version)

    def weights_sha256(self, version):
        return "0" * 64

    def close(self):
        pass


def open_run(fleet, **more):
    fields = {"name": "grpo", "team": "research", "model": MODEL, "token": fleet.token} | more
    run = client.open_run(fleet.url, **fields)
    run._origin = Announced()
    return run


def test_prompts_come_back_as_generations_in_their_order(tmp_path):
    recorded, engine = Recorded(), Engine()
    with fleet(tmp_path, engine, writer=recorded) as service, open_run(service) as run:
        assert run.publish({}) == 0
        generations = run.generate([[1], [1, 2], [1, 2, 3]], {"max_new_tokens": 2}, group_id="g0", step=0)
        assert [generation.output_ids for generation in generations] == [[1, 2], [2, 3], [3, 4]]
        assert generations[1].logprobs == [-0.5, -0.5]
        assert generations[1].versions == [0, 0]
        assert (generations[2].prompt_ids, generations[2].group_id) == ([1, 2, 3], "g0")
        run.judge(generations, [0.0, 1.0, 1.0], verifier="tests", threshold=0.5)
        assert run.publish({}) == 1
        times_ns = {"rollout_ns": 5, "train_ns": 6, "publish_ns": 7}
        for _ in range(2):
            run.record(client.step_over(0, generations, [0.0, 1.0, 1.0], policy_version=1, **times_ns))
        assert engine.held[0] == (run.run_id, 0)
    turns, verdicts = recorded.of("turn"), recorded.of("verdict")
    assert {turn.run_id for turn in turns} == {run.run_id}
    assert [(turn.group_id, turn.step, turn.answer_tokens) for turn in turns] == [("g0", 0, None)] * 3
    assert [verdict.accepted for verdict in verdicts] == [False, True, True]
    names = {generation.trajectory_id for generation in generations}
    assert {trajectory.trajectory_id for trajectory in recorded.of("trajectory")} == names
    assert {event.event_id for event in recorded.of("step")} == {"step-0"}
    assert [event.action for event in recorded.of("run")] == ["started", "ended"]
    assert all(isinstance(turn, Turn) for turn in turns)


def test_a_client_whose_turns_wait_is_told_what_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("rose.client.run.STALLED_S", 0.3)
    monkeypatch.setattr("rose.client.run.PROGRESS_S", 0.1)
    engine = Engine()
    engine.failed = "version 0 and the engine differ in tensors"
    with fleet(tmp_path, engine) as service, open_run(service) as run, ThreadPoolExecutor(1) as pool:
        run.publish({})
        generating = pool.submit(run.generate, [[1], [1, 2]], {"max_new_tokens": 2}, progress=None)
        warnings = []
        while len(warnings) < 2:
            time.sleep(0.05)
            warnings = [record for record in caplog.records if record.name == "rose.client"]
        why = "no engine has its run's weights yet (e0: version 0 and the engine differ in tensors)"
        assert {warning.args for warning in warnings} == {(2, run.run_id, why)}
        engine.failed = None
        assert [generation.output_ids for generation in generating.result(20)] == [[1, 2], [2, 3]]


def test_a_turn_is_awaited_and_streamed_in_the_caller_s_loop(tmp_path):
    async def scenario(run):
        generation = await run.turn([7], {"max_new_tokens": 3}, trajectory_id="t", turn=0)
        parts = [part async for part in run.stream([7, 1, 2, 3], {"max_new_tokens": 2}, trajectory_id="t", turn=1)]
        return generation, parts

    with fleet(tmp_path, Engine(pause_s=0.05)) as service, open_run(service) as run:
        run.publish({})
        generation, parts = asyncio.run(scenario(run))
    assert generation.output_ids == [1, 2, 3]
    assert [part.output_ids for part in parts] == [[4], [5], []]
    assert parts[-1].generation.output_ids == [4, 5]
    assert parts[-1].generation.versions == [0, 0]


def test_a_run_outlives_a_restart_of_its_controller_and_its_own_expiry(tmp_path):
    with fleet(tmp_path, Engine(pause_s=0.5)) as service, open_run(service) as run:
        run.publish({})

        def away():
            service.stop()
            time.sleep(0.3)
            service.start()

        threading.Timer(0.3, away).start()
        (generation,) = run.generate([[1, 2]], {"max_new_tokens": 2})
        assert generation.output_ids == [2, 3]
        assert run.publish({}) == 1  # the new one knows the run
        expire(service, run)
        assert run.publish({}) == 2
        assert run.fence == 2
        assert run.generate([[1]], {"max_new_tokens": 1})


def test_a_controller_that_stays_away_is_given_up_with_what_to_do(tmp_path):
    with fleet(tmp_path) as service:
        run = open_run(service, away_s=0.3)
        run.publish({})
        service.stop()
        with pytest.raises(client.ControllerAwayError, match=r"did not answer for 0 s.*resume"):
            run.generate([[1]], {"max_new_tokens": 1})
        with pytest.raises(client.ControllerAwayError, match=service.url):
            run.publish({})
        run.leave()


class Between(BaseHTTPRequestHandler):
    """A proxy. The answers to `lost` POSTs that open or resume a run do not come back; while it is not `clear`, such
    POSTs wait."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/runs":
            self.server.came.set()
            self.server.clear.wait(20)
        try:
            with urllib.request.urlopen(urllib.request.Request(self.server.behind + self.path, data=body)) as response:
                status, answer = response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                status, answer = error.code, error.read()
        if self.path == "/runs" and self.server.lost:
            self.server.lost -= 1
            return
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@contextmanager
def serving(handler):
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def between(service):
    with serving(Between) as server:
        server.behind, server.lost = service.url, 0
        server.came, server.clear = threading.Event(), threading.Event()
        server.clear.set()
        yield server
        server.clear.set()


def test_a_run_whose_opening_was_not_heard_is_not_opened_twice(tmp_path):
    recorded = Recorded()
    with fleet(tmp_path, writer=recorded) as service, between(service) as line:
        line.lost = 2
        run = client.open_run(line.url, name="grpo", model=MODEL)
        line.lost = 1
        resumed = client.open_run(line.url, name="grpo", model=MODEL, resume=run.run_id)
        assert (line.lost, run.fence, resumed.fence) == (0, 1, 2)
        assert [opened.run_id for opened in service.gateway.controller.runs] == [run.run_id]
        run.leave()
        resumed.leave()
    assert [event.action for event in recorded.of("run")] == ["started"]


class FullDisk(Recorded):
    def __init__(self):
        super().__init__()
        self.room = threading.Event()

    def record_all(self, events):
        if any(event.kind == "step" for event in events) and not self.room.is_set():
            raise LedgerError("no space left on device")
        super().record_all(events)


def step():
    return client.step_over(0, [], [], policy_version=1, rollout_ns=1, train_ns=1, publish_ns=1)


def test_a_controller_that_says_what_keeps_it_is_waited_for_longer_than_one_that_is_silent(tmp_path, caplog):
    ledger = FullDisk()
    with fleet(tmp_path, writer=ledger) as service, open_run(service, away_s=0.2) as run:
        threading.Timer(1.2, ledger.room.set).start()
        run.record(step())
        assert ledger.room.is_set()
    assert [event.step for event in ledger.of("step")] == [0]
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "rose.client"]
    assert "no space left on device" in warning


def test_turns_of_a_run_with_too_many_wait_until_others_are_answered(tmp_path, monkeypatch, caplog):
    with fleet(tmp_path) as service, open_run(service, away_s=0.2) as run:
        run.publish({})
        monkeypatch.setattr(paths, "TURNS_MAX", 0)
        threading.Timer(1.2, monkeypatch.undo).start()
        assert run.generate([[1]], {"max_new_tokens": 1})[0].output_ids == [1]
    assert f"run {run.run_id!r} has 0 open turns" in caplog.text


def test_a_controller_that_cannot_open_a_run_says_why(tmp_path):
    async def make_read_only():
        service.gateway.controller.state._connection.execute("PRAGMA query_only = 1")

    reason = r"busy or refuses for 1 s: .*readonly.*disk; open the run once"
    with fleet(tmp_path) as service:
        service.call(make_read_only())
        with pytest.raises(client.ControllerAwayError, match=reason) as away:
            open_run(service, away_s=1.0)
        assert "did not answer" not in str(away.value)


def test_a_client_that_finds_no_controller_is_told_to_open_or_to_resume_its_run():
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(client.ControllerAwayError, match=r"start it, or correct the URL, \w+ open the run$"):
        client.open_run(url, name="grpo", model=MODEL, away_s=0.1)
    with pytest.raises(client.ControllerAwayError, match=r"start it, or correct the URL, \w+ resume the run$"):
        client.open_run(url, name="grpo", model=MODEL, away_s=0.1, resume="grpo-1")

    class Proxy(Between):
        def do_POST(self):
            self.send_error(503)

    with serving(Proxy) as proxy:
        with pytest.raises(client.ControllerAwayError, match=r"did not answer for 1 s \(status 503\): start it"):
            client.open_run(proxy.url, name="n", model=MODEL, away_s=0.6)


def test_a_newer_client_of_a_run_takes_it_over(tmp_path):
    with fleet(tmp_path) as service, open_run(service) as first:
        first.publish({})
        with open_run(service, resume=first.run_id) as second:
            assert (second.run_id, second.version, second.last_step) == (first.run_id, 0, None)
            assert second.fence > first.fence
            with pytest.raises(client.RunTakenError, match=f"{first.run_id}.*its fence is 2, not 1"):
                first.publish({})
            with pytest.raises(client.RunTakenError):
                first.check()
            second._origin.newest = 0
            assert second.publish({}) == 1


@pytest.mark.parametrize(
    "wait",
    [lambda run: run.generate([[1]], version_min=9), lambda run: run.record(step())],
    ids=["for weights that nobody publishes", "for a full disk"],
)
def test_a_client_that_waits_hears_that_its_run_was_taken(tmp_path, wait):
    with fleet(tmp_path, writer=FullDisk()) as service, open_run(service, expires_s=1.0) as first:
        first.publish({})
        taking = threading.Timer(0.5, lambda: open_run(service, resume=first.run_id).leave())
        taking.start()
        with pytest.raises(client.RunTakenError, match="its fence is"):
            wait(first)
        taking.join()


def expire(service, run):
    controller = service.gateway.controller
    record = controller.runs.get(run.run_id)

    async def pass_time():
        record.heard_ns -= int(3600e9)
        controller.pass_time(time.monotonic_ns())
        assert record.facts.state == "expired"

    service.call(pass_time())


def test_a_publisher_whose_folder_and_run_were_taken_over_hears_of_its_run(tmp_path):
    with fleet(tmp_path / "state") as service:
        opened = {"token": service.token, "folder": tmp_path / "weights", "host": "127.0.0.1"}
        first = client.open_run(service.url, name="grpo", model=MODEL, **opened)
        first.publish({"w": torch.ones(2)})
        second = client.open_run(service.url, name="grpo", model=MODEL, resume=first.run_id, **opened)
        second.publish({"w": torch.zeros(2)})
        with pytest.raises(client.RunTakenError, match="its fence is"):
            first.publish({"w": torch.ones(2)})
        with pytest.raises(client.RunTakenError):
            first.check()
        first.leave()
        second.close()


def test_a_client_whose_resumption_comes_late_does_not_take_the_run_from_its_successor(tmp_path):
    with ThreadPoolExecutor(1) as pool, fleet(tmp_path) as service, between(service) as line:
        first = client.open_run(line.url, name="grpo", team="research", model=MODEL)
        expire(service, first)
        line.came.clear()
        line.clear.clear()
        recording = pool.submit(first.record, step())
        assert line.came.wait(20)
        with open_run(service, resume=first.run_id) as second:
            line.clear.set()
            with pytest.raises(client.RunTakenError, match="its fence is"):
                recording.result(20)
            with pytest.raises(client.RunTakenError):
                first.check()
            assert second.publish({}) == 0
            assert second.fence == 2
        first.leave()


def test_a_client_that_did_not_hear_that_it_has_resumed_its_run_keeps_it(tmp_path):
    with fleet(tmp_path) as service, between(service) as line:
        run = client.open_run(line.url, name="grpo", model=MODEL, expires_s=1.0)
        line.lost = 1
        expire(service, run)  # and the run is renewed within a quarter of a second
        while run.fence == 1:
            run.check()
            time.sleep(0.02)
        assert line.lost == 0
        run.record(step())
        run.leave()


def test_a_run_is_renewed_while_its_trainer_is_busy_and_closed_with_what_ended_it(tmp_path):
    recorded = Recorded()
    with fleet(tmp_path, writer=recorded) as service:
        with open_run(service, expires_s=0.3) as busy:
            time.sleep(0.6)
            assert service.gateway.controller.runs.get(busy.run_id).is_open
        with pytest.raises(ValueError, match="no such reward"), open_run(service):
            raise ValueError("no such reward")
        with open_run(service) as left:
            left.leave()
    reasons = [(event.action, event.reason) for event in recorded.of("run")]
    failed = ("failed", "ValueError: no such reward")
    assert reasons == [("started", None), ("ended", None), ("started", None), failed, ("started", None)]


WRONG = [
    ({"url": "127.0.0.1:30100"}, "url '127.0.0.1:30100' must be the controller's root"),
    ({"away_s": 0.0}, "away_s 0.0 must be a finite number above 0"),
    ({"name": ""}, "name is '': "),
    ({"staleness_max": -1}, "staleness_max is -1: "),
    ({"weight": 0.0}, "weight is 0.0: "),
    ({"model": "another"}, "'another'.*frozenlake-tiny"),
    ({"resume": "nobody"}, "unknown run 'nobody'"),
    ({"token": "wrong"}, "needs a token"),
]


def test_what_is_wrong_is_named_with_its_value(tmp_path):
    with fleet(tmp_path, token="the-right-token-of-it") as service:
        for change, message in WRONG:
            fields = {"url": service.url, "name": "n", "model": MODEL, "token": service.token} | change
            with pytest.raises(client.ClientError, match=message):
                client.open_run(**fields)


def test_what_cannot_be_recorded_or_judged_is_refused_here(tmp_path):
    with fleet(tmp_path) as service, open_run(service) as run:
        with pytest.raises(client.ClientError, match="publish one before its first turn"):
            run.generate([[1]])
        run.publish({})
        generations = run.generate([[1]], {"max_new_tokens": 1})
        with pytest.raises(client.ClientError, match="group_id None and step None"):
            run.judge(generations, [1.0], verifier="v")
        with pytest.raises(client.ClientError, match="rewards has 2 values for 1 generations"):
            run.judge(generations, [1.0, 2.0], verifier="v")
        with pytest.raises(client.ClientError, match="group_ids has 1 names for 2 prompts"):
            run.generate([[1], [2]], group_ids=["a"])
        with pytest.raises(client.ClientError, match=r"unknown labels \['gruop_id'\]"):
            asyncio.run(run.turn([1], gruop_id="g"))
        with pytest.raises(client.ClientError, match="max_new_tokens"):
            run.generate([[1]], {"max_new_tokens": -1})
