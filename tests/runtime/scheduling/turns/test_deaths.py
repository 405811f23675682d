"""Turns that kill the engines that work on them, and what becomes of those beside them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web

from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.turns import turn_queue, turns
from tests.runtime.scheduling.stand_ins import FakeEngine, play, serve

#: A prompt that begins with this kills whoever works on it.
KILLER = 666


class MortalEngine(FakeEngine):
    """Makes all tokens of a turn in 0.2 s, or dies: every connection breaks, until it lives again."""

    def __init__(self):
        super().__init__()
        self.dead, self.deaths, self.transports = False, 0, set()

    async def generate(self, request):
        body = await request.json()
        if self.dead:
            request.transport.abort()
            return web.Response()
        self.transports.add(request.transport)
        if body["input_ids"][0] == KILLER:
            await asyncio.sleep(0.05)
            self.die()
            return web.Response()
        try:
            await asyncio.sleep(0.2)
            return web.json_response(self.answer(self.tokens(body), {"type": "length"}))
        finally:
            self.transports.discard(request.transport)

    def die(self):
        if not self.dead:
            self.dead = True
            self.deaths += 1
        for transport in self.transports:
            transport.abort()
        self.transports.clear()


@asynccontextmanager
async def mortals(run, count=1, capacity=16):
    """Engines whose agents notice that they died, and start them again."""
    async with AsyncExitStack() as stack:
        engines = [MortalEngine() for _ in range(count)]
        urls = [await stack.enter_async_context(serve(engine)) for engine in engines]

        async def keep():
            while True:
                for number, (engine, url) in enumerate(zip(engines, urls, strict=True)):
                    alive, engine.dead = not engine.dead, False
                    await run.beat(
                        run.report(url, f"e{number}", alive=alive, capacity=capacity), device_id=f"d{number}"
                    )
                await asyncio.sleep(0.02)

        keeping = asyncio.create_task(keep())
        await asyncio.sleep(0.1)
        try:
            yield engines
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


async def send(run, first):
    return await run.post({"input_ids": [first], "sampling_params": {"max_new_tokens": 2}})


@pytest.mark.parametrize("count", [1, 3])
def test_a_turn_that_kills_its_engines_is_given_up_after_a_few(count):
    async def scenario():
        async with play() as run, mortals(run, count) as engines:
            status, answer = await asyncio.wait_for(send(run, KILLER), 60)
            assert (status, "engines died 5 times in a row" in answer["error"]) == (503, True)
            assert sum(engine.deaths for engine in engines) == 5
            assert {attempt["outcome"] for attempt in answer["rose"]["attempts"]} == {"failed"}
            assert {attempt["engine_id"] for attempt in answer["rose"]["attempts"][:count]} == {
                f"e{number}" for number in range(count)
            }

    asyncio.run(scenario())


@pytest.mark.parametrize(("count", "killers"), [(1, 1), (2, 1), (2, 4)])
def test_no_turn_is_lost_by_those_that_kill_their_engines(count, killers):
    async def scenario():
        async with play() as run, mortals(run, count) as engines:
            prompts = [KILLER] * killers + list(range(1, 15))
            answers = await asyncio.wait_for(asyncio.gather(*(send(run, first) for first in prompts)), 100)
            assert [status for status, _ in answers] == [503] * killers + [200] * 14
            assert [answer["output_ids"] for _, answer in answers[killers:]] == [[1, 2]] * 14
            # Each that kills has been on so many, some of them together.
            assert 5 <= sum(engine.deaths for engine in engines) <= 5 * killers

    asyncio.run(scenario())


def test_an_engine_that_dies_again_and_again_costs_no_turn_that_another_one_takes():
    async def scenario():
        async with play() as run, mortals(run, 2) as engines:
            ill = engines[0]

            async def ail():
                while True:
                    await asyncio.sleep(0.1)
                    ill.die()

            ailing = asyncio.create_task(ail())
            answers = await asyncio.wait_for(asyncio.gather(*(send(run, first) for first in range(1, 40))), 60)
            assert ill.deaths > 1
            assert {status for status, _ in answers} == {200}
            assert all(len(answer["meta_info"]["rose"]["attempts"]) <= 3 for _, answer in answers)
            ailing.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("other", [{"borrowed": True}, {"policy_version": 2}, {"capacity": 0}, {"alive": False}])
def test_a_turn_goes_back_to_the_engine_that_died_if_no_other_takes_it(other):
    async def scenario():
        async with play(3, run={"staleness_max": 0}) as run, mortals(run) as (engine,):
            await run.beat(run.report("http://x", "other", **other), device_id="other")
            turn = asyncio.create_task(send(run, 1))
            for deaths in (1, 2, 3):
                await asyncio.sleep(0.1)
                for _ in range(500):
                    if engine.transports:
                        break
                    await asyncio.sleep(0.02)
                engine.die()
                assert engine.deaths == deaths
            async with asyncio.timeout(20):
                while not turn.done():
                    await run.beat(run.report("http://x", "other", **other), device_id="other")
                    await asyncio.sleep(0.1)
            status, answer = await turn
            assert status == 200
            assert {attempt["engine_id"] for attempt in answer["meta_info"]["rose"]["attempts"]} == {"e0"}

    asyncio.run(scenario())


def test_a_host_that_is_away_costs_no_turn_however_often_it_is_tried():
    """Connections are refused at once, whatever its agent says."""

    async def scenario():
        async with play() as run, serve(FakeEngine()) as url:
            away = f"http://127.0.0.1:{free_port()}"
            turn = asyncio.create_task(send(run, 1))
            for _ in range(20):
                for alive in (False, True):
                    await run.beat(run.report(away, alive=alive))
                    await asyncio.sleep(0.1)
            assert not turn.done()
            while not turn.done():
                await run.beat(run.report(url))
                await asyncio.sleep(0.05)
            status, answer = await turn
            assert status == 200
            attempts = answer["meta_info"]["rose"]["attempts"]
            assert sum("could not be reached" in attempt.get("error", "") for attempt in attempts) >= 5

    asyncio.run(scenario())


def test_an_engine_that_dies_after_long_work_costs_no_turn_its_life(monkeypatch):
    monkeypatch.setattr(turn_queue, "QUEUE_MAX_S", 0.3)
    monkeypatch.setattr(turns, "ATTEMPT_WAITED_MAX_NS", 10_000_000)

    class Slow(MortalEngine):
        async def generate(self, request):
            if self.deaths == 0:
                await request.json()
                await asyncio.sleep(0.5)
                self.deaths += 1
                request.transport.abort()
                return web.Response()
            return await super().generate(request)

    async def scenario():
        async with serve(Slow()) as url, play() as run:
            await run.beat(run.report(url))
            turn = asyncio.create_task(send(run, 1))
            while not turn.done():
                await run.beat(run.report(url))
                await asyncio.sleep(0.02)
            status, answer = await turn
            assert status == 200
            assert answer["meta_info"]["rose"]["attempts"][0]["outcome"] == "failed"

    asyncio.run(scenario())


def test_time_on_engines_that_make_no_token_is_spent_waiting(monkeypatch):
    monkeypatch.setattr(turn_queue, "QUEUE_MAX_S", 1.0)

    class Busy(FakeEngine):
        async def generate(self, request):
            await request.json()
            await asyncio.sleep(0.3)
            return web.Response(status=503)

    async def scenario():
        async with serve(Busy()) as url, play() as run:
            turn = asyncio.create_task(send(run, 1))
            while not turn.done():
                await run.beat(run.report(url))
                await asyncio.sleep(0.01)
            status, answer = await turn
            assert status == 503
            *before, _ = answer["rose"]["attempts"]
            assert sum(attempt["duration_ns"] for attempt in before) > 0

    asyncio.run(scenario())
