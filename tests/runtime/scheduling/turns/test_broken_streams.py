import asyncio

import pytest

from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import ask
from tests.runtime.scheduling.stand_ins import (
    SERVERS,
    FakeAgent,
    FakeEngine,
    events,
    fleet,
    gateway,
    open_run,
    publish,
    serve,
    until,
)

STREAMED = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 12}, "stream": True}


async def streamed(session, engine, url):
    opened = await open_run(session)
    await publish(session, opened)
    beating = asyncio.create_task(FakeAgent(session, engine, url).run())
    try:
        async with session.post(f"/runs/{opened['run_id']}/generate", json=STREAMED) as response:
            return [part async for part in events(response)][-1]
    finally:
        beating.cancel()


class BreakingEngine(FakeEngine):
    def __init__(self, events):
        super().__init__()
        self.events = events

    async def generate(self, request):
        self.transport = request.transport
        return await super().generate(request)

    async def send(self, response, answer):
        await super().send(response, answer)
        self.events -= 1
        if not self.events:
            self.transport.close()
            raise ConnectionResetError


async def test_the_tokens_of_an_engine_that_breaks_off_come_to_something(tmp_path):
    with LedgerWriter.open(tmp_path, "controller", "fleet-run") as writer:
        engine = BreakingEngine(3)
        async with gateway(writer=writer) as (session, _), serve(engine) as url:
            last = await streamed(session, engine, url)
    assert last["output_ids"] == list(range(2, 14))
    assert last["meta_info"]["rose"]["attempts"][0]["error"].startswith("broke off")
    turns = ask(tmp_path, "SELECT attempt, outcome, output_tokens FROM turn ORDER BY attempt")
    assert turns == [(0, "preempted", 3), (1, "completed", 9)]


async def test_a_stream_that_breaks_off_after_its_end_is_complete():
    engine = BreakingEngine(4)
    engine.tokens = lambda body: [7, 8, 9]  # It stops by itself, before it has as many as were wanted.
    async with gateway() as (session, _), serve(engine) as url:
        last = await streamed(session, engine, url)
    assert last["output_ids"] == [7, 8, 9]
    assert [attempt["outcome"] for attempt in last["meta_info"]["rose"]["attempts"]] == ["completed"]
    assert len(engine.requests) == 1


class NonsenseEngine(FakeEngine):
    def __init__(self, event):
        super().__init__()
        self.event = event

    async def begin_stream(self, request):
        response = await super().begin_stream(request)
        if self.event:
            await response.write(b"data: %b\n\n" % self.event)
            self.event = b""
        return response


@pytest.mark.parametrize(
    "event",
    [b'{"error": ', b'{"error": %b}' % (b"[" * 5000), b'["error"]', b"null"],
    ids=["cut", "too deep to read", "a list", "nothing"],
)
async def test_a_turn_whose_stream_made_no_sense_is_tried_again(event):
    engine = NonsenseEngine(event)
    async with gateway() as (session, _), serve(engine) as url:
        last = await streamed(session, engine, url)
    assert last["output_ids"] == list(range(2, 14))
    first, second = last["meta_info"]["rose"]["attempts"]
    assert first["outcome"] == "failed"
    assert first["error"].startswith("made no sense: not an answer of SGLang: ")
    assert second["outcome"] == "completed"


async def test_what_was_made_of_a_stream_that_its_client_leaves_is_on_record(tmp_path):
    with LedgerWriter.open(tmp_path, "controller", "fleet-run") as writer:
        async with gateway(writer=writer) as (session, _), fleet(session, pause_s=0.05) as (agent,):
            opened = await open_run(session)
            await publish(session, opened)
            async with session.post(f"/runs/{opened['run_id']}/generate", json=STREAMED) as response:
                async for part in events(response):
                    seen = len(part["output_ids"])
                    if seen >= 3:
                        break
                response.close()
            await until(lambda: SERVERS[0].controller.loads[opened["run_id"]].failed == 1)
            await until(lambda: not agent.engine.running)
    ((outcome, tokens),) = ask(tmp_path, "SELECT outcome, output_tokens FROM turn")
    assert outcome == "failed"
    assert seen <= tokens < 12
