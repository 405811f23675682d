import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web

from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling import turn_service
from rose.runtime.scheduling.turns import turn_queue
from tests.runtime.scheduling.stand_ins import FakeEngine, play, serve, until

#: A prompt that begins with this kills whoever works on it.
KILLER = 666


class MortalEngine(FakeEngine):
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
            await asyncio.sleep(0.02)
            self.die()
            return web.Response()
        try:
            await asyncio.sleep(0.1)
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


@pytest.mark.parametrize(("count", "killers"), [(1, 1), (3, 4)])
async def test_no_turn_is_lost_by_those_that_kill_their_engines(count, killers):
    async with play() as run, mortals(run, count) as engines:
        prompts = [KILLER] * killers + list(range(1, 15))
        answers = await asyncio.wait_for(asyncio.gather(*(send(run, first) for first in prompts)), 100)
        assert [status for status, _ in answers] == [503] * killers + [200] * 14
        for _, answer in answers[:killers]:
            assert "engines died 5 times in a row" in answer["error"]["message"]
            assert {attempt["outcome"] for attempt in answer["rose"]["attempts"]} == {"failed"}
        assert [answer["output_ids"] for _, answer in answers[killers:]] == [[1, 2]] * 14
        assert 5 <= sum(engine.deaths for engine in engines) <= 5 * killers


async def test_an_engine_that_dies_again_and_again_costs_no_turn_that_another_one_takes():
    async with play() as run, mortals(run, 2) as engines:
        ill = engines[0]

        async def ail():
            while True:
                await asyncio.sleep(0.05)
                ill.die()

        ailing = asyncio.create_task(ail())
        answers = await asyncio.wait_for(asyncio.gather(*(send(run, first) for first in range(1, 40))), 60)
        assert ill.deaths > 1
        assert {status for status, _ in answers} == {200}
        assert all(len(answer["meta_info"]["rose"]["attempts"]) <= 3 for _, answer in answers)
        ailing.cancel()


async def test_a_turn_goes_back_to_the_engine_that_died_if_no_other_takes_it():
    others = [{"borrowed": True}, {"policy_version": 2}, {"capacity": 0}, {"alive": False}]
    async with play(3, run={"staleness_max": 0}) as run, mortals(run) as (engine,):
        reports = [run.report("http://x", f"other{number}", **other) for number, other in enumerate(others)]
        await run.beat(*reports, device_id="other")
        turn = asyncio.create_task(send(run, 1))
        for deaths in (1, 2, 3):
            await until(lambda: engine.transports)
            engine.die()
            assert engine.deaths == deaths
        async with asyncio.timeout(20):
            while not turn.done():
                await run.beat(*reports, device_id="other")
                await asyncio.sleep(0.05)
        status, answer = await turn
        assert status == 200
        assert {attempt["engine_id"] for attempt in answer["meta_info"]["rose"]["attempts"]} == {"e0"}


async def test_a_host_that_is_away_costs_no_turn_however_often_it_is_tried():
    async with play() as run, serve(FakeEngine()) as url:
        away = f"http://127.0.0.1:{free_port()}"
        turn = asyncio.create_task(send(run, 1))
        for _ in range(10):
            for alive in (False, True):
                await run.beat(run.report(away, alive=alive))
                await asyncio.sleep(0.02)
        assert not turn.done()
        while not turn.done():
            await run.beat(run.report(url))
            await asyncio.sleep(0.05)
        status, answer = await turn
        assert status == 200
        attempts = answer["meta_info"]["rose"]["attempts"]
        assert sum("could not be reached" in attempt.get("error", "") for attempt in attempts) >= 3


async def test_an_engine_that_dies_after_long_work_costs_no_turn_its_life(monkeypatch):
    monkeypatch.setattr(turn_queue, "QUEUE_MAX_S", 0.3)
    monkeypatch.setattr(turn_service, "ATTEMPT_WAITED_MAX_NS", 10_000_000)

    class Slow(MortalEngine):
        async def generate(self, request):
            if self.deaths == 0:
                await request.json()
                await asyncio.sleep(0.4)
                self.deaths += 1
                request.transport.abort()
                return web.Response()
            return await super().generate(request)

    async with serve(Slow()) as url, play() as run:
        await run.beat(run.report(url))
        turn = asyncio.create_task(send(run, 1))
        while not turn.done():
            await run.beat(run.report(url))
            await asyncio.sleep(0.02)
        status, answer = await turn
        assert status == 200
        assert answer["meta_info"]["rose"]["attempts"][0]["outcome"] == "failed"
