import asyncio
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from rose.client.generation import GenerationLost
from rose.runtime.engines.ports import free_port
from rose.runtime.policy import routing
from rose.runtime.scheduling import workers
from rose.runtime.scheduling.engines import engine_calls
from rose.runtime.scheduling.messages import PreemptRequest
from rose.runtime.scheduling.turns import turn_queue, turns
from tests.runtime.scheduling.stand_ins import FakeEngine, play, post, reported, serve, until


class BrokenEngine(FakeEngine):
    def __init__(self, status, body):
        super().__init__()
        self.status, self.body = status, body

    async def generate(self, request):
        self.requests.append(await request.json())
        return web.Response(status=self.status, text=self.body)


class DyingEngine(FakeEngine):
    async def generate(self, request):
        self.requests.append(await request.json())
        request.transport.abort()
        return web.Response()


class HaltingEngine(FakeEngine):
    async def pause(self, rid, count):
        if count:
            await self.abort[rid].wait()


async def test_a_turn_comes_back_with_tokens_and_where_they_were_made():
    async with serve(FakeEngine(version="7")) as url, play(7) as run:
        await run.beat(run.report(url))
        generation = await run.turn(3, [5, 6])
        assert generation.output_ids == [2, 3, 4]
        assert generation.versions == [7, 7, 7]
        assert generation.logprobs == [-0.5] * 3
        (attempt,) = generation.attempts
        assert (attempt.engine_id, attempt.outcome, attempt.placement) == ("e0", "completed", "least_loaded")
        again = await run.turn(3, [5, 6, 2, 3, 4], turn=1)
        assert again.attempts[0].placement == "prefix"


async def test_a_preempted_turn_keeps_its_tokens_and_goes_on_elsewhere():
    slow, fast = FakeEngine(pause_s=0.03), FakeEngine()
    async with serve(slow) as slow_url, serve(fast) as fast_url, play() as run:
        await run.beat(run.lent(slow_url, "L", 10, engine_id="slow"))
        turn = run.begin(40)
        await until(lambda: slow.running)
        await asyncio.sleep(0.1)
        await run.beat(run.report(fast_url, "fast"))
        wanted = PreemptRequest(engine_id="slow", kv_tokens=None, reason="test")
        status, reply = await post(run.session, "/preempt", wanted.model_dump_json())
        assert (status, reply["requests"]) == (200, 1)
        generation = await turn
        first, second = generation.attempts
        assert (first.engine_id, first.outcome, first.lease_id) == ("slow", "preempted", "L")
        assert (second.engine_id, second.outcome) == ("fast", "completed")
        assert first.output_tokens > 0
        assert first.output_tokens + second.output_tokens == 40
        assert generation.output_ids == list(range(1, 41))  # nothing lost, nothing made twice


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, '{"error": {"message": "the prompt is longer than the context"}}', "longer than the context"),
        (422, '{"detail": "top_p"}', '{"detail": "top_p"}'),
        (413, "too much", "too much"),
        (400, "[" * 5000, "[" * 5000),
    ],
    ids=["SGLang's words", "JSON", "text", "JSON too deep to read"],
)
async def test_an_engine_that_refuses_a_turn_has_the_last_word(status, body, message):
    engine, other = BrokenEngine(status, body), FakeEngine()
    async with serve(engine) as url, serve(other) as other_url, play() as run:
        await run.beat(run.report(url, "strict", capacity=100), run.report(other_url, "z", capacity=1))
        answered, answer = await run.post({"input_ids": [1]})
        assert answered == 400
        assert message in answer["error"]["message"]
        assert "strict" in answer["error"]["message"]
        (attempt,) = answer["rose"]["attempts"]
        assert (attempt["engine_id"], attempt["outcome"], attempt["output_tokens"]) == ("strict", "failed", 0)
        assert (len(engine.requests), len(other.requests)) == (1, 0)
        # A refusal says something of the turn and nothing of the engine, which goes on taking others.
        assert all(worker["alive"] for worker in await reported(run.session))
        with pytest.raises(GenerationLost) as lost:
            await run.turn(1)
        assert len(lost.value.attempts) == 1


class CountingEngine(FakeEngine):
    def __init__(self):
        super().__init__()
        self.connections = []

    async def generate(self, request):
        self.connections.append(request.transport)
        return await super().generate(request)


async def test_a_connection_is_used_again_unless_it_was_idle_for_so_long_that_the_engine_may_close_it(monkeypatch):
    monkeypatch.setattr(engine_calls, "_IDLE_S", 0.3)
    engine = CountingEngine()
    async with serve(engine) as url, play() as run:
        await run.beat(run.report(url))
        for pause_s in (0.0, 0.0, 0.5, 0.0):
            await asyncio.sleep(pause_s)
            await run.turn(1)
    assert [engine.connections.index(one) for one in engine.connections] == [0, 0, 2, 2]


async def test_the_first_turns_of_a_group_go_where_their_prompt_is_cached():
    async with serve(FakeEngine()) as url, play() as run:
        await run.beat(run.report(url, "one"), run.report(url, "other"))
        went = []
        for prompt in ([1, 2], [1, 2], [3, 4], [1, 2]):
            _, answer = await run.post({"input_ids": prompt})
            (attempt,) = answer["meta_info"]["rose"]["attempts"]
            went.append((attempt["engine_id"], attempt["placement"] == "prefix"))
        assert [prefix for _, prefix in went] == [False, True, False, True]
        assert went[0][0] == went[1][0] == went[3][0]


async def test_an_engine_with_an_error_of_its_own_is_avoided_and_the_attempt_says_why():
    engines = {
        "answered 500: out of memory": BrokenEngine(500, "out of memory"),
        "answered 401: this engine wants its token": BrokenEngine(401, "this engine wants its token"),
        "answered 404": BrokenEngine(404, ""),
        "answered 429": BrokenEngine(429, ""),
        "broke off: ": DyingEngine(),
        "could not be reached: ": None,
    }
    async with serve(FakeEngine()) as url, play() as run, AsyncExitStack() as stack:
        for number, (error, engine) in enumerate(engines.items()):
            away = f"http://127.0.0.1:{free_port()}"
            broken_url = away if engine is None else await stack.enter_async_context(serve(engine))
            await run.beat(run.report(broken_url, error, capacity=100), run.report(url, "sound", capacity=1))
            status, answer = await run.post({"input_ids": [number]})
            assert status == 200
            first, second = answer["meta_info"]["rose"]["attempts"]
            assert (first["engine_id"], first["outcome"]) == (error, "failed")
            assert first["error"].startswith(error)
            assert (second["engine_id"], second["outcome"], second.get("error")) == ("sound", "completed", None)
            alive = {engine["engine_id"]: engine["alive"] for engine in await reported(run.session)}
            assert alive == {error: False, "sound": True}
            await run.beat(run.report(broken_url, error, alive=False))


#: Status and body of an engine's answer, and what the turn says of it.
ANSWERS = [
    (404, '{"error": {"message": "Not\\n Found \\u0007"}}', "answered 404: Not Found"),
    (401, "x" * 5000, f"answered 401: {'x' * 286}"),
    (503, "", "answered 503"),
    (200, "{}", "made no sense: not an answer of SGLang: Object missing required field `meta_info`"),
    (200, "ok", "made no sense: not an answer of SGLang: JSON is malformed: invalid character (byte 0)"),
]


async def test_a_turn_that_gets_nowhere_is_given_up_with_its_attempts_and_the_last_engine_s_answer(monkeypatch):
    monkeypatch.setattr(turn_queue, "QUEUE_MAX_S", 0.2)
    broken = BrokenEngine(0, "")
    async with serve(broken) as url, play() as run:
        for broken.status, broken.body, error in ANSWERS:
            broken.requests.clear()
            turn = asyncio.create_task(run.post({"input_ids": [1]}))
            while not turn.done():
                await run.beat(run.report(url))  # the agent keeps calling it alive
                await asyncio.sleep(0.01)
            answered, answer = await turn
            assert (answered, "no attempt made a token" in answer["error"]["message"]) == (503, True)
            assert f"last attempt on e0: {error}" in answer["error"]["message"]
            assert [attempt["error"] for attempt in answer["rose"]["attempts"]] == [error] * len(broken.requests)
            assert 2 <= len(broken.requests) <= 8  # waits become longer


async def test_a_turn_may_be_taken_off_more_often_than_it_has_tokens_as_long_as_it_gets_on(monkeypatch):
    monkeypatch.setattr(turns, "AVOID_NS", 0)
    engine = HaltingEngine()
    async with serve(engine) as url, play() as run:
        await run.beat(run.report(url))
        turn = run.begin(24, min_new_tokens=10, custom_params={"own": 1})
        wanted = PreemptRequest(engine_id="e0", kv_tokens=None, reason="test").model_dump_json()
        while not turn.done():
            await post(run.session, "/preempt", wanted)
            await asyncio.sleep(0.01)
            await run.beat(run.report(url))
        generation = await turn
        assert generation.output_ids == list(range(1, 25))
        assert len(generation.attempts) >= 12
        for request in engine.requests:
            made = len(request["input_ids"]) - 1
            custom = {"own": 1, "rose_made": made} if made else {"own": 1}
            assert request["sampling_params"] == {"max_new_tokens": 24, "min_new_tokens": 10, "custom_params": custom}


async def test_turns_on_a_host_that_fell_silent_go_on_elsewhere(monkeypatch):
    monkeypatch.setattr(workers, "SILENCE_MAX_NS", 200_000_000)
    monkeypatch.setattr(workers, "LOST_NS", 300_000_000)
    hung, other = FakeEngine(pause_s=3600), FakeEngine()
    async with serve(hung) as url, serve(other) as other_url, play() as run:
        turn = run.begin(2)
        while not hung.requests:
            await run.beat(run.report(url, "hung"))
            await asyncio.sleep(0.02)
        while not turn.done():
            await run.beat(run.report(other_url, "other"))
            await asyncio.sleep(0.05)
        first, *_, last = (await turn).attempts
        assert (first.engine_id, first.outcome) == ("hung", "failed")
        assert (last.engine_id, last.outcome) == ("other", "completed")


async def test_a_turn_that_waits_on_a_lent_device_moves_to_an_engine_that_is_idle(monkeypatch):
    monkeypatch.setattr(routing, "STALLED_MIN_NS", 50_000_000)
    held, idle = FakeEngine(pause_s=0.1), FakeEngine()
    async with serve(held) as url, serve(idle) as idle_url, play() as run:
        await run.beat(run.report(idle_url, "idle"))
        await run.turn(1000, trajectory_id="t0")  # how fast it is
        await run.beat(run.lent(url, left_s=60), run.report(idle_url, "idle", capacity=0))
        turn = run.begin(1000)
        await asyncio.sleep(0.3)
        await run.beat(run.lent(url, left_s=60), run.report(idle_url, "idle"))
        generation = await asyncio.wait_for(turn, 10)
        outcomes = [(attempt.engine_id, attempt.outcome) for attempt in generation.attempts]
        assert outcomes == [("e0", "preempted"), ("idle", "completed")]
        assert generation.output_ids == list(range(1, 1001))


async def test_only_the_youngest_are_cut():
    engine = FakeEngine(pause_s=0.02)
    async with serve(engine) as url, play() as run:
        await run.beat(run.lent(url, left_s=10))
        turns = []
        for number in range(3):
            turns.append(run.begin(9, trajectory_id=f"t{number}"))
            await asyncio.sleep(0.02)
        wanted = PreemptRequest(engine_id="e0", kv_tokens=11, reason="test")
        _, reply = await post(run.session, "/preempt", wanted.model_dump_json())
        assert reply == {"requests": 2, "kv_tokens": 20}  # 1 + 9 each
        assert [len((await turn).attempts) for turn in turns] == [1, 2, 2]
