"""The gateway over real HTTP; the engines behind it are small servers that answer as SGLang does."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from rose.runtime.engines.sglang import free_port
from rose.runtime.rollout.agent import GenerationLost
from rose.runtime.scheduling import gateway as gateway_module
from rose.runtime.scheduling.client import GenerateClient
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.scheduling.messages import EngineReport, Heartbeat, PreemptRequest, StepRequest


class FakeEngine:
    """Makes one token each `pause_s`: the count of tokens in the prompt so far. Aborts as SGLang does."""

    def __init__(self, pause_s=0.0, version="default"):
        self.pause_s, self.version = pause_s, version
        self.requests, self.aborted = [], set()

    async def generate(self, request):
        body = await request.json()
        self.requests.append(body)
        made = []
        while len(made) < body["sampling_params"]["max_new_tokens"] and body["rid"] not in self.aborted:
            await asyncio.sleep(self.pause_s)
            made.append(len(body["input_ids"]) + len(made))
        reason = "abort" if body["rid"] in self.aborted else "length"
        return web.json_response(
            {
                "output_ids": made,
                "meta_info": {
                    "finish_reason": {"type": reason},
                    "cached_tokens": 1,
                    "output_token_logprobs": [[-0.5, token, None] for token in made],
                    "weight_versions": [{"version": self.version, "start": 0, "end": len(made)}],
                },
            }
        )

    async def abort(self, request):
        self.aborted.add((await request.json())["rid"])
        return web.Response()


@asynccontextmanager
async def serve(engine):
    app = web.Application()
    app.add_routes([web.post("/generate", engine.generate), web.post("/abort_request", engine.abort)])
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway(token=None):
    port = free_port()
    server = Gateway("127.0.0.1", port, token)
    await server.start()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
        try:
            yield session, f"http://127.0.0.1:{port}"
        finally:
            await server.stop()


def report(url, engine_id="e0", **changes):
    fields = {
        "engine_id": engine_id,
        "device_id": f"device-of-{engine_id}",
        "url": url,
        "borrowed": False,
        "alive": True,
        "capacity": 8,
        "policy_version": 0,
        "lease_id": None,
        "lease_left_ns": None,
        "slack_ok": True,
    }
    return EngineReport(**{**fields, **changes})


async def beat(session, *reports):
    body = Heartbeat(device_id="d", engines=list(reports)).model_dump_json()
    async with session.post("/heartbeat", data=body) as response:
        return await response.json()


class BrokenEngine(FakeEngine):
    """Answers every turn with an error status."""

    def __init__(self, status, body):
        super().__init__()
        self.status, self.body = status, body

    async def generate(self, request):
        self.requests.append(await request.json())
        return web.Response(status=self.status, text=self.body)


async def post(session, path, body):
    async with session.post(path, data=body if isinstance(body, str) else json.dumps(body)) as response:
        return response.status, await response.json()


def test_a_turn_comes_back_with_tokens_and_where_they_were_made():
    async def scenario():
        engine = FakeEngine(version="7")
        async with serve(engine) as url, gateway() as (session, gateway_url):
            await beat(session, report(url, policy_version=7))
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 3})
            generation = await generate([5, 6], trajectory_id="t", turn=0)
            assert generation.output_ids == [2, 3, 4]
            assert generation.versions == [7, 7, 7]
            assert generation.logprobs == [-0.5] * 3
            (attempt,) = generation.attempts
            assert (attempt.engine_id, attempt.outcome, attempt.placement) == ("e0", "completed", "least_loaded")
            again = await generate([5, 6, 2, 3, 4], trajectory_id="t", turn=1)
            assert again.attempts[0].placement == "prefix"

    asyncio.run(scenario())


def test_a_preempted_turn_keeps_its_tokens_and_goes_on_elsewhere():
    async def scenario():
        slow, fast = FakeEngine(pause_s=0.05), FakeEngine()
        async with serve(slow) as slow_url, serve(fast) as fast_url, gateway() as (session, gateway_url):
            await beat(session, report(slow_url, "slow", borrowed=True, lease_id="L", lease_left_ns=10**10))
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 40})
            turn = asyncio.create_task(generate([1], trajectory_id="t", turn=0))
            await asyncio.sleep(0.4)
            await beat(session, report(fast_url, "fast"))
            wanted = PreemptRequest(engine_id="slow", kv_tokens=None, reason="test")
            status, reply = await post(session, "/preempt", wanted.model_dump_json())
            assert (status, reply["requests"]) == (200, 1)
            generation = await turn
            first, second = generation.attempts
            assert (first.engine_id, first.outcome, first.lease_id) == ("slow", "preempted", "L")
            assert (second.engine_id, second.outcome) == ("fast", "completed")
            assert first.output_tokens > 0
            assert first.output_tokens + second.output_tokens == 40
            assert generation.output_ids == list(range(1, 41))  # nothing lost, nothing made twice

    asyncio.run(scenario())


def test_a_dead_engine_costs_a_turn_its_attempt_and_nothing_else():
    async def scenario():
        engine = FakeEngine()
        async with serve(engine) as url, gateway() as (session, gateway_url):
            dead = f"http://127.0.0.1:{free_port()}"
            await beat(session, report(dead, "dead", capacity=100), report(url, "live", capacity=1))
            generation = await GenerateClient(session, gateway_url, {"max_new_tokens": 2})(
                [1], trajectory_id="t", turn=0
            )
            assert [attempt.outcome for attempt in generation.attempts] == ["failed", "completed"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, '{"error": {"message": "the prompt is longer than the context"}}', "longer than the context"),
        (422, '{"detail": "top_p"}', '{"detail": "top_p"}'),
        (404, "nothing here", "nothing here"),
    ],
)
def test_an_engine_that_refuses_a_turn_has_the_last_word(status, body, said):
    async def scenario():
        engine, other = BrokenEngine(status, body), FakeEngine()
        async with serve(engine) as url, serve(other) as other_url, gateway() as (session, gateway_url):
            await beat(session, report(url, "strict", capacity=100), report(other_url, "z", capacity=1))
            answered, answer = await post(session, "/generate", {"input_ids": [1]})
            assert answered == 400
            assert said in answer["error"]
            assert "strict" in answer["error"]
            (attempt,) = answer["rose"]["attempts"]
            assert (attempt["engine_id"], attempt["outcome"], attempt["output_tokens"]) == ("strict", "failed", 0)
            assert (len(engine.requests), len(other.requests)) == (1, 0)
            # A refusal says something of the turn and nothing of the engine, which goes on taking others.
            async with session.get("/workers") as response:
                assert all(worker["alive"] for worker in await response.json())
            with pytest.raises(GenerationLost) as lost:
                await GenerateClient(session, gateway_url, {"max_new_tokens": 1})([1], trajectory_id="t", turn=0)
            assert len(lost.value.attempts) == 1

    asyncio.run(scenario())


def test_an_engine_with_an_error_of_its_own_is_avoided_and_the_turn_tried_again():
    async def scenario():
        broken, engine = BrokenEngine(500, "out of memory"), FakeEngine()
        async with serve(broken) as broken_url, serve(engine) as url, gateway() as (session, gateway_url):
            await beat(session, report(broken_url, "broken", capacity=100), report(url, "sound", capacity=1))
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 1})
            generation = await generate([1], trajectory_id="t", turn=0)
            seen = [(attempt.engine_id, attempt.outcome) for attempt in generation.attempts]
            assert seen == [("broken", "failed"), ("sound", "completed")]
            async with session.get("/workers") as response:
                alive = {worker["engine_id"]: worker["alive"] for worker in await response.json()}
            assert alive == {"broken": False, "sound": True}

    asyncio.run(scenario())


def test_a_turn_that_always_fails_is_given_up_with_its_attempts(monkeypatch):
    waits, sleep = [], asyncio.sleep

    async def short(seconds, *rest):
        waits.append(seconds)
        await sleep(0, *rest)

    async def scenario():
        broken = BrokenEngine(503, "")
        async with serve(broken) as url, gateway() as (session, _):
            monkeypatch.setattr(gateway_module.asyncio, "sleep", short)
            turn = asyncio.create_task(post(session, "/generate", {"input_ids": [1]}))
            while not turn.done():
                await beat(session, report(url))  # the agent keeps calling it alive
            status, answer = await turn
            assert status == 503
            assert len(answer["rose"]["attempts"]) == len(broken.requests) == gateway_module.ATTEMPTS_MAX
            assert waits[:3] == [0.05, 0.1, 0.2]
            assert max(waits) == gateway_module.BACKOFF_MAX_S

    asyncio.run(scenario())


def test_leases_are_renewed_only_while_a_step_is_open():
    async def scenario():
        async with gateway() as (session, _):
            lent = report("http://x", borrowed=True, lease_id="L1", lease_left_ns=10**9)
            assert (await beat(session, lent))["renew"] == []
            await post(session, "/step", StepRequest(step=0, open=True, version_min=0).model_dump_json())
            assert (await beat(session, lent))["renew"] == ["L1"]
            await post(session, "/step", StepRequest(step=0, open=False, version_min=0).model_dump_json())
            assert (await beat(session, lent))["renew"] == []

    asyncio.run(scenario())


def test_a_turn_waits_for_weights_that_are_new_enough():
    async def scenario():
        async with serve(FakeEngine()) as url, gateway() as (session, gateway_url):
            await post(session, "/step", StepRequest(step=5, open=True, version_min=5).model_dump_json())
            await beat(session, report(url, policy_version=4))
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 1})
            turn = asyncio.create_task(generate([1], trajectory_id="t", turn=0))
            await asyncio.sleep(0.3)
            assert not turn.done()
            await beat(session, report(url, policy_version=5))
            generation = await turn
            assert generation.attempts[0].placement == "queue"
            assert generation.attempts[0].policy_version == 5

    asyncio.run(scenario())


def test_only_the_youngest_are_cut():
    async def scenario():
        engine = FakeEngine(pause_s=0.02)
        async with serve(engine) as url, gateway() as (session, gateway_url):
            await beat(session, report(url, "e0", borrowed=True, lease_id="L", lease_left_ns=10**10))
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 9})
            turns = []
            for number in range(3):
                turns.append(asyncio.create_task(generate([1], trajectory_id=f"t{number}", turn=0)))
                await asyncio.sleep(0.02)
            wanted = PreemptRequest(engine_id="e0", kv_tokens=11, reason="test")
            _, reply = await post(session, "/preempt", wanted.model_dump_json())
            assert reply == {"requests": 2, "kv_tokens": 20}  # 1 + 9 each
            attempts = [len((await turn).attempts) for turn in turns]
            assert attempts == [1, 2, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/generate", "{", "Invalid JSON"),
        ("/generate", "", "Invalid JSON"),
        ("/generate", [1, 2], "object"),
        ("/generate", "null", "object"),
        ("/generate", {}, "input_ids"),
        ("/generate", {"input_ids": "abc"}, "input_ids"),
        ("/generate", {"input_ids": []}, "input_ids"),
        ("/generate", {"input_ids": [1, "2"]}, "input_ids.1"),
        ("/generate", {"input_ids": [[1]]}, "input_ids.0"),
        ("/generate", {"input_ids": [1], "sampling_params": 3}, "sampling_params"),
        ("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": "many"}}, "max_new_tokens"),
        ("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1.5}}, "max_new_tokens"),
        ("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        ("/generate", {"input_ids": [1], "rose": "t"}, "rose"),
        ("/heartbeat", {"device_id": "d"}, "engines"),
        ("/preempt", {"engine_id": "e0", "kv_tokens": -1, "reason": "x"}, "kv_tokens"),
        ("/step", {"step": 0, "open": True, "version_min": 0, "colour": "red"}, "colour"),
    ],
)
def test_bad_input_is_refused_by_name(path, body, named):
    async def scenario():
        async with gateway() as (session, _):
            status, answer = await post(session, path, body)
            assert status == 400
            assert named in answer["error"]

    asyncio.run(scenario())


def test_fields_the_gateway_does_not_read_are_passed_on_or_ignored():
    async def scenario():
        engine = FakeEngine()
        async with serve(engine) as url, gateway() as (session, _):
            await beat(session, report(url))
            sampling = {"max_new_tokens": 2, "temperature": 0.5, "stop_token_ids": [7]}
            body = {"input_ids": [1], "sampling_params": sampling, "stream": False, "rose": {"trajectory_id": 5}}
            assert (await post(session, "/generate", body))[0] == 200
            assert engine.requests[0]["sampling_params"] == sampling
            assert (await post(session, "/generate", {"input_ids": [1], "sampling_params": None}))[0] == 200
            assert engine.requests[1]["sampling_params"] == {"max_new_tokens": 128}

    asyncio.run(scenario())


def test_a_gateway_with_a_token_serves_nobody_without_it():
    async def scenario():
        async with gateway("secret") as (session, gateway_url):
            for headers in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer sécret"}):
                async with aiohttp.ClientSession(headers=headers) as stranger:
                    async with stranger.get(f"{gateway_url}/workers") as response:
                        assert response.status == 401
            async with session.get("/workers") as response:
                assert response.status == 200

    asyncio.run(scenario())


def test_a_gateway_that_is_away_loses_the_turn_with_a_reason():
    async def scenario():
        async with aiohttp.ClientSession() as session:
            generate = GenerateClient(session, f"http://127.0.0.1:{free_port()}", {"max_new_tokens": 1})
            with pytest.raises(GenerationLost, match="is away"):
                await generate([1], trajectory_id="t", turn=0)

    asyncio.run(scenario())
