import asyncio

import pytest

from rose.clock import monotonic_ns
from rose.transfer.wire.receiver import Receiver
from tests.runtime.scheduling.stand_ins import SERVERS, call, fleet, gateway, post, until


def begin(session, path="/generate", **body):
    asked = {"text": "a", "sampling_params": {"max_new_tokens": 30}, **body}
    return asyncio.create_task(post(session, path, asked))


def turns(server):
    return sum(len(load.turns) for load in server.controller.loads.values())


async def test_a_paused_run_keeps_its_tokens_and_goes_on(speaking):
    async with speaking("a " * 30) as (session, _, server, engine):
        engine.pause_s = 0.02
        turn = begin(session)
        await until(lambda: engine.running)
        await asyncio.sleep(0.1)
        assert (await post(session, "/pause_generation", {"mode": "in_place"}))[0] == 200
        await until(lambda: not engine.running)
        asked = len(engine.requests)
        later = begin(session)
        await asyncio.sleep(0.2)
        assert (turns(server), len(engine.requests)) == (2, asked)
        status, refused = await call(session, "GET", "/flush_cache")
        assert (status, "2 turns" in refused["error"]["message"]) == (400, True)
        assert (await post(session, "/continue_generation", {}))[0] == 200
        (status, made), (_, other) = await turn, await later
        assert (status, len(made["output_ids"]), len(other["output_ids"])) == (200, 30, 30)
        assert [one["outcome"] for one in made["meta_info"]["rose"]["attempts"]] == ["preempted", "completed"]
        plain = {"input_ids": [3], "sampling_params": {"max_new_tokens": 30}}
        run_id = next(iter(server.controller.runs)).run_id
        turn = asyncio.create_task(post(session, f"/runs/{run_id}/generate", plain))
        await until(lambda: engine.running)
        await asyncio.sleep(0.1)
        for path in ("/pause_generation", "/continue_generation"):
            assert (await post(session, path, {"mode": "keep"}))[0] == 200
        _, made = await turn
        assert len(made["meta_info"]["rose"]["attempts"]) > 1
        assert made["meta_info"]["weight_versions"] == [{"version": f"{run_id}/0", "start": 0, "end": 30}]


@pytest.mark.parametrize("where", ["on an engine", "in the queue"])
async def test_an_aborted_turn_is_answered_with_its_tokens(speaking, where):
    async with speaking("a " * 30) as (session, _, server, engine):
        engine.pause_s = 0.03
        if where == "in the queue":
            await post(session, "/pause", {"mode": "keep"})
        turn, other = begin(session, rid="mine"), begin(session, rid="yours")
        await until(lambda: turns(server) == 2 and (where == "in the queue" or len(engine.running) == 2))
        assert (await post(session, "/abort_request", {"rid": "mine"}))[1]["aborted"] == 1
        status, made = await asyncio.wait_for(turn, 10)
        assert (status, made["meta_info"]["finish_reason"]["type"]) == (200, "abort")
        assert len(made["output_ids"]) < 30
        assert not other.done()
        assert (await post(session, "/abort_request", {"abort_all": True}))[1]["aborted"] == 1
        assert (await other)[1]["meta_info"]["finish_reason"]["type"] == "abort"
        for body in ({}, {"rid": 5}, {"abort_all": False}):
            assert (await post(session, "/abort_request", body))[0] == 400


async def test_turns_that_waited_for_an_update_are_made_on_it(speaking, checkpoint):
    async with speaking("a " * 30, published=False, sync_s=0.5) as (session, _, server, engine):
        body = {"model_path": str(checkpoint)}
        assert (await post(session, "/update_weights_from_disk", body))[1]["weight_version"] == "0"
        engine.pause_s = 0.03
        cut = begin(session)
        await until(lambda: engine.running)
        await asyncio.sleep(0.1)
        await post(session, "/pause_generation", {"mode": "in_place"})
        await until(lambda: not engine.running)
        waited, bound = begin(session), begin(session, rose={"version_min": 0})
        await until(lambda: turns(server) == 3)
        assert (await post(session, "/update_weights_from_disk", body))[1]["weight_version"] == "1"
        await post(session, "/continue_generation", {})
        attempts = [(await turn)[1]["meta_info"]["rose"]["attempts"] for turn in (cut, waited, bound)]
        assert [[one["policy_version"] for one in of_turn] for of_turn in attempts] == [[0, 1], [1], [0]]
        (run,) = server.controller.runs
        assert server.controller.loads[run.run_id]._versions == {}


async def test_an_update_that_cannot_be_is_refused_and_the_old_weights_stay(speaking, tmp_path, checkpoint):
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"nonsense")
    async with speaking(published=False) as (session, _, server, _):
        await post(session, "/generate", {"text": "a"})
        for path in (str(tmp_path / "empty"), str(tmp_path / "damaged"), str(tmp_path / "none"), "relative", None, 5):
            status, refused = await post(session, "/update_weights_from_disk", {"model_path": path})
            assert (status, str(path) in refused["error"]["message"]) == (400, True), path
        (run,) = server.controller.runs
        assert run.facts.version == 0
        assert (await post(session, "/generate", {"text": "a"}))[0] == 200
        status, updated = await post(session, "/update_weights", {"weight_dir": str(checkpoint)})
        assert (status, updated["weight_version"]) == (200, "1")


async def test_what_the_controller_published_is_served_again_after_a_restart(speaking, tmp_path, checkpoint):
    many = {"models": ["words"], "state": tmp_path, "checkpoint": lambda _: checkpoint}
    async with gateway(**many) as (session, _), fleet(session):
        assert (await post(session, "/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1}}))[0] == 200
        (run,) = SERVERS[0].controller.runs
    async with gateway(**many) as (session, _):
        server = SERVERS[0]
        await until(lambda: not server._origins._tasks)
        again = server.controller.runs.get(run.run_id)
        assert again.facts.version == 0
        receiver = Receiver(again.target.url, again.target.token, tmp_path / "fetched", run_id=run.run_id)
        assert (await asyncio.to_thread(receiver.fetch, 0, None)).version == 0


async def test_a_run_that_expired_between_two_steps_goes_on_with_its_weights(speaking, checkpoint, monkeypatch):
    async with speaking(published=False) as (session, _, server, _):
        for _ in range(2):
            assert (await post(session, "/update_weights_from_disk", {"model_path": str(checkpoint)}))[0] == 200
        (run,) = server.controller.runs
        monkeypatch.setattr(run, "heard_ns", 0)
        server.controller.pass_time(monotonic_ns())
        assert run.facts.state == "expired"
        _, made = await post(session, "/generate", {"text": "a"})
        assert made["meta_info"]["rose"]["versions"] == [1, 1, 1]
        body = {"model_path": str(checkpoint)}
        assert (await post(session, "/update_weights_from_disk", body))[1]["weight_version"] == "2"
        assert list(server.controller.runs) == [run]


async def test_a_router_s_paths_fan_out_to_the_one_worker(speaking):
    async with speaking() as (session, url, _, _):
        (worker,) = (await call(session, "GET", "/v1/rl/workers"))[1]["workers"]
        assert (worker["id"], worker["url"], worker["weight_version"]) == ("rose", url, "0")
        assert (await call(session, "GET", "/v1/rl/workers/rose"))[1]["id"] == "rose"
        assert (await call(session, "GET", "/v1/rl/workers/other"))[0] == 404
        _, told = await call(session, "GET", "/v1/rl/engine/model_info")
        assert told["results"][0]["body"]["weight_version"] == "0"
        _, told = await post(session, "/v1/rl/engine/pause_generation", {"mode": "retract"})
        assert told["results"][0]["status"] == 200
        assert (await post(session, "/v1/rl/engine/shutdown", {}))[0] == 404
        status, refused = await post(session, "/workers", {"url": "http://10.9.9.9:30000"})
        assert (status, "10.9.9.9" in refused["error"]["message"]) == (400, True)


async def test_health_tells_whether_turns_can_be_made():
    async with gateway(models=["words"], devices={"d": "h"}) as (session, _):
        assert (await call(session, "GET", "/health"))[0] == 200
        assert (await call(session, "GET", "/health_generate"))[0] == 503
