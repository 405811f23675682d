import asyncio

from rose.clock import monotonic_ns
from rose.runtime.scheduling import workers
from rose.runtime.scheduling.messages import PreemptRequest
from rose.runtime.scheduling.turns import turns
from tests.runtime.scheduling.stand_ins import SERVERS, FakeEngine, play, post, reported, serve, until


async def test_leases_are_renewed_only_while_there_are_turns():
    async with play() as run:
        idle = await run.beat(run.lent())
        assert (idle["renew"], idle["wanted_ns"], idle["step"]) == ([], {}, None)
        turn = asyncio.create_task(run.post({"input_ids": [1], "rose": {"step": 3}}))
        await until(lambda: len(SERVERS[0].controller.queue))
        wanted = await run.beat(run.lent())
        assert (wanted["renew"], wanted["step"]) == (["L1"], 3)
        assert wanted["wanted_ns"]["e0"] > 0
        turn.cancel()  # a client that is gone wants nothing
        await until(lambda: not SERVERS[0].controller.wanted.wanted_ns)
        assert (await run.beat(run.lent()))["renew"] == []


async def test_a_poll_is_answered_when_a_turn_comes_and_when_the_last_one_is_over():
    async with serve(FakeEngine(pause_s=0.02)) as url, play() as run:
        first = await run.beat(run.lent(url), hold_s=9)
        assert first["wanted_ns"] == {}  # nothing was seen, so it is answered at once
        same = await run.beat(run.lent(url), seen=first["seq"], hold_s=0.1)
        assert same == first
        poll = asyncio.create_task(run.beat(run.lent(url), seen=first["seq"], hold_s=9))
        await asyncio.sleep(0.1)
        assert not poll.done()
        turn = asyncio.create_task(run.post({"input_ids": [1], "sampling_params": {"max_new_tokens": 5}}))
        wanted = await asyncio.wait_for(poll, 5)
        assert wanted["seq"] > first["seq"]
        assert wanted["wanted_ns"]["e0"] > 0
        assert wanted["renew"] == ["L1"]
        over = await asyncio.wait_for(run.beat(run.lent(url), seen=wanted["seq"], hold_s=9), 5)
        assert turn.done()
        assert (over["wanted_ns"], over["renew"]) == ({}, [])


async def test_an_agent_in_a_poll_is_not_silent_and_one_whose_connection_broke_is(monkeypatch):
    monkeypatch.setattr(workers, "SILENCE_MAX_NS", 200_000_000)
    async with play() as run:
        seen = (await run.beat(run.report("http://x")))["seq"]
        poll = asyncio.create_task(run.beat(run.report("http://x"), seen=seen, hold_s=9))
        await asyncio.sleep(0.3)
        assert [worker["alive"] for worker in await reported(run.session)] == [True]
        poll.cancel()
        await until(lambda: not SERVERS[0].controller.workers["e0"].facts.alive(monotonic_ns()))


async def test_a_turn_that_is_longer_than_leases_is_borrowed_for():
    engine = FakeEngine(pause_s=0.02)
    async with serve(engine) as url, play() as run:

        async def agent():
            while True:
                reply = await run.beat(run.lent(url, left_s=0.1 if renewed else 0.0))
                renewed[:] = reply["renew"]
                await asyncio.sleep(0.02)

        renewed = ["L1"]
        beating = asyncio.create_task(agent())
        for number in range(2):  # the second when the mean is known
            renewed = ["L1"]
            generation = await run.turn(20, trajectory_id=f"t{number}")  # 0.4 s, on leases of 0.1 s
            assert [(a.outcome, a.lease_id) for a in generation.attempts] == [("completed", "L1")]
        beating.cancel()


async def test_a_turn_does_not_return_to_an_engine_whose_lease_is_being_taken_back(monkeypatch):
    monkeypatch.setattr(turns, "AVOID_NS", 0)
    engine = FakeEngine(pause_s=0.02)
    async with serve(engine) as url, play() as run:
        await run.beat(run.lent(url, left_s=60))
        turn = run.begin(20)
        await until(lambda: engine.running)
        wanted = PreemptRequest(engine_id="e0", kv_tokens=None, reason="test")
        await post(run.session, "/preempt", wanted.model_dump_json())
        # A report that was on its way names the lease still; it is neither used nor renewed.
        late = await run.beat(run.lent(url, left_s=60))
        assert late["renew"] == []
        await asyncio.sleep(0.1)
        assert not turn.done()
        assert len(engine.requests) == 1
        await run.beat(run.lent(url, "L2", left_s=60))
        generation = await turn
        assert [attempt.lease_id for attempt in generation.attempts] == ["L1", "L2"]
        assert generation.output_ids == list(range(1, 21))


async def test_turns_leave_an_engine_whose_lease_is_gone():
    lending, other = FakeEngine(pause_s=0.05), FakeEngine()
    async with serve(lending) as url, serve(other) as other_url, play() as run:
        await run.beat(run.lent(url))
        turn = run.begin(100)
        await until(lambda: lending.running)
        await asyncio.sleep(0.1)
        await run.beat(run.lent(url, None, left_s=0), run.report(other_url, "other"))
        generation = await turn
        assert [attempt.outcome for attempt in generation.attempts] == ["preempted", "completed"]
        assert generation.attempts[0].output_tokens > 0
        assert generation.output_ids == list(range(1, 101))
