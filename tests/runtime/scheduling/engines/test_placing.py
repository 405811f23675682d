import asyncio

import pytest

from tests.runtime.scheduling.stand_ins import FakeEngine, play, serve


async def test_waiting_turns_go_out_in_the_order_in_which_they_came():
    engine = FakeEngine(pause_s=0.02)
    async with serve(engine) as url, play() as run:
        playing = []
        for number in range(6):
            playing.append(run.begin(1, [number], f"t{number}"))
            await asyncio.sleep(0.02)
        await run.beat(run.report(url, capacity=1))
        await asyncio.gather(*playing)
        assert [request["input_ids"] for request in engine.requests] == [[number] for number in range(6)]


async def test_an_engine_never_has_more_turns_than_its_capacity():
    engine, seen = FakeEngine(pause_s=0.01), []
    async with serve(engine) as url, play() as run:
        await run.beat(run.report(url, capacity=3))
        playing = [run.begin(2, trajectory_id=f"t{number}") for number in range(20)]
        while not all(task.done() for task in playing):
            seen.append(len(engine.running))
            await asyncio.sleep(0.005)
            await run.beat(run.report(url, capacity=3))
        assert max(seen) == 3


async def test_a_policy_that_keeps_serving_alone_places_nothing_on_borrowed_devices():
    async with serve(FakeEngine()) as url, play(policy="solo") as run:
        await run.beat(run.lent(url, left_s=60))
        turn = run.begin(1)
        await asyncio.sleep(0.1)
        assert not turn.done()
        await run.beat(run.report(url, "own"))
        assert [attempt.engine_id for attempt in (await turn).attempts] == ["own"]


@pytest.mark.parametrize(
    ("published", "opening", "label"), [(4, {}, {"version_min": 5}), (5, {"staleness_max": 0}, {})], ids=["turn", "run"]
)
async def test_a_turn_waits_for_weights_as_new_as_it_or_its_run_wants(published, opening, label):
    async with serve(FakeEngine()) as url, play(published, run=opening) as run:
        await run.beat(run.report(url, policy_version=4))
        turn = run.begin(1, **label)
        await asyncio.sleep(0.1)
        assert not turn.done()
        # An engine that could not take it is not wanted either.
        assert (await run.beat(run.report(url, policy_version=4)))["wanted_ns"] == {}
        assert (await run.beat(run.report(url, policy_version=5)))["wanted_ns"].keys() == {"e0"}
        (attempt,) = (await turn).attempts
        assert (attempt.placement, attempt.policy_version) == ("queue", 5)
