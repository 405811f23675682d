import asyncio

import pytest

from rose.ledger.files import catalog
from rose.ledger.writer import LedgerWriter
from rose.runtime.scheduling import turn_service
from rose.runtime.scheduling.engines import assignment
from rose.runtime.scheduling.gateway import paths
from rose.runtime.scheduling.messages import PreemptRequest
from rose.runtime.scheduling.turns import turn_queue
from tests.runtime.scheduling.stand_ins import (
    SERVERS,
    STEP,
    call,
    events,
    fleet,
    gateway,
    open_run,
    post,
    publish,
    reported,
    until,
)


def turn(tokens=3, *, prompt=(1, 2), **labels):
    return {
        "input_ids": list(prompt),
        "sampling_params": {"max_new_tokens": tokens},
        "rose": {"trajectory_id": "t", **labels},
    }


async def opened_run(session, version=0, **fields):
    opened = await open_run(session, **fields)
    await publish(session, opened, version)
    return opened, f"/runs/{opened['run_id']}/generate"


async def test_a_streamed_turn_shows_its_tokens_as_they_are_made_and_survives_preemption():
    async with gateway() as (session, _), fleet(session, 2, pause_s=0.03) as _agents:
        _, path = await opened_run(session, 5)
        seen = []
        async with session.post(path, json=turn(12) | {"stream": True}) as response:
            assert response.headers["Content-Type"] == "text/event-stream", await response.text()
            async for part in events(response):
                seen.append(part)
                if len(seen) == 4:
                    meta = part["meta_info"]
                    assert (meta["finish_reason"], meta["completion_tokens"]) == (None, len(part["output_ids"]))
                    found = await reported(session)
                    (engine,) = [worker["engine_id"] for worker in found if worker["in_flight"]]
                    wanted = PreemptRequest(engine_id=engine, kv_tokens=None, reason="test")
                    await post(session, "/preempt", wanted.model_dump_json())
        lengths = [len(part["output_ids"]) for part in seen]
        assert lengths == sorted(lengths)
        last = seen[-1]
        assert last["output_ids"] == list(range(2, 14))
        assert last["meta_info"]["finish_reason"] == {"type": "length"}
        assert last["meta_info"]["rose"]["versions"] == [5] * 12
        assert [a["outcome"] for a in last["meta_info"]["rose"]["attempts"]] == ["preempted", "completed"]
        for part in seen:
            assert part["output_ids"] == last["output_ids"][: len(part["output_ids"])]
            assert len(part["meta_info"]["output_token_logprobs"]) == len(part["output_ids"])


async def test_a_turn_that_gets_nowhere_says_why_also_when_it_is_streamed(monkeypatch):
    monkeypatch.setattr(turn_queue, "QUEUE_MAX_S", 0.2)
    async with gateway() as (session, _), fleet(session):
        opened = await open_run(session)
        path = f"/runs/{opened['run_id']}/generate"
        for body in (turn(), turn() | {"stream": True}):
            status, answer = await post(session, path, body)
            assert (status, "has published no version" in answer["error"]["message"]) == (503, True)
        await publish(session, opened, 2)
        status, answer = await post(session, path, turn(version_min=9))
        assert (status, "on an engine is 2, and the turn needs 9" in answer["error"]["message"]) == (503, True)


async def test_a_turn_sent_again_with_its_key_is_made_once(monkeypatch):
    monkeypatch.setattr(assignment, "PEAK_NS", 100_000_000)
    async with gateway() as (session, _), fleet(session, pause_s=0.02) as (agent,):
        _, path = await opened_run(session)
        both = [asyncio.create_task(post(session, path, turn(10, key="k"))) for _ in range(2)]
        async with session.post(path, json=turn(10, key="k") | {"stream": True}) as response:
            streamed = [part async for part in events(response)][-1]
        answers = [await task for task in both] + [await post(session, path, turn(10, key="k"))]
        assert all(answer == (200, streamed) for answer in answers)
        assert len(agent.engine.requests) == 1
        status, answer = await post(session, path, turn(11, key="k"))
        assert (status, "'k'" in answer["error"]["message"]) == (409, True)
        _, other = await opened_run(session)
        assert (await post(session, other, turn(3, key="k")))[0] == 200


async def test_a_client_that_comes_back_in_time_finds_its_turn_in_progress(monkeypatch):
    async with gateway() as (session, _), fleet(session, pause_s=0.03) as (agent,):
        _, path = await opened_run(session)
        first = asyncio.create_task(post(session, path, turn(10, key="k")))
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.sleep(0.1)
        assert (await post(session, path, turn(10, key="k")))[1]["output_ids"] == list(range(2, 12))
        assert len(agent.engine.requests) == 1
        monkeypatch.setattr(turn_service, "KEY_GRACE_S", 0.1)
        first = asyncio.create_task(post(session, path, turn(1000, key="other")))
        await asyncio.sleep(0.1)
        first.cancel()
        await until(lambda: not agent.engine.running)  # nobody came back


async def test_a_turn_goes_on_for_who_asked_second_when_the_first_leaves(monkeypatch):
    monkeypatch.setattr(turn_service, "KEY_GRACE_S", 0.0)
    async with gateway() as (session, _), fleet(session, pause_s=0.03) as (agent,):
        _, path = await opened_run(session)
        for stream in (False, True):
            body = turn(10, key=f"k{stream}")
            first = asyncio.create_task(post(session, path, body | {"stream": stream}))
            await asyncio.sleep(0.1)
            second = asyncio.create_task(post(session, path, body))
            await asyncio.sleep(0.05)
            first.cancel()
            assert (await second)[1]["output_ids"] == list(range(2, 12))
        assert len(agent.engine.requests) == 2


async def test_tokens_of_another_run_s_weights_are_not_taken():
    async with gateway() as (session, _), fleet(session) as (agent,):
        opened, path = await opened_run(session)
        await post(session, path, turn())
        agent.engine.version = "another-run/0"
        making = asyncio.create_task(post(session, path, turn()))
        await asyncio.sleep(0.15)
        assert not making.done()
        agent.engine.version = f"{opened['run_id']}/0"
        status, answer = await making
        attempts = answer["meta_info"]["rose"]["attempts"]
        assert (status, answer["output_ids"]) == (200, [2, 3, 4])
        assert {attempt["outcome"] for attempt in attempts[:-1]} == {"failed"}


@pytest.mark.parametrize("at_once", [True, False], ids=["said at once", "said at the end"])
async def test_a_stream_has_no_token_of_another_run_s_weights(at_once):
    async with gateway() as (session, _), fleet(session, pause_s=0.03) as (agent,):
        opened, path = await opened_run(session, 5)
        engine, answer = agent.engine, agent.engine.answer

        def misled(ids, finish_reason):
            message = answer(ids[:3] + [token + 1000 for token in ids[3:]], finish_reason)
            spans = [(f"{opened['run_id']}/5", 0, min(3, len(ids))), ("another-run/9", 3, len(ids))]
            spans = [{"version": version, "start": start, "end": end} for version, start, end in spans if end > start]
            message["meta_info"]["weight_versions"] = spans if at_once or finish_reason else None
            if finish_reason or (at_once and len(ids) == 4):
                engine.answer = answer
            return message

        engine.answer = misled
        async with session.post(path, json=turn(12) | {"stream": True}) as response:
            seen = [part async for part in events(response)]
        last = seen[-1]
        assert last["output_ids"] == list(range(2, 14))
        assert last["meta_info"]["rose"]["versions"] == [5] * 12
        for part in seen if at_once else []:
            assert part["output_ids"] == last["output_ids"][: len(part["output_ids"])]
        first, *_, final = last["meta_info"]["rose"]["attempts"]
        assert (first["outcome"], first["output_tokens"]) == ("preempted", 3)
        assert first["error"] == "made tokens with another run's weights"
        assert final["outcome"] == "completed"


async def test_the_staleness_bound_of_a_run_holds_for_turns_that_say_nothing():
    async with gateway() as (session, _), fleet(session, sync_s=0.15):
        opened, path = await opened_run(session, staleness_max=1)
        await post(session, path, turn())
        await publish(session, opened, 1)
        _, answer = await post(session, path, turn())
        assert answer["meta_info"]["rose"]["versions"] == [0, 0, 0]
        await publish(session, opened, 9)
        _, answer = await post(session, path, turn())
        assert answer["meta_info"]["rose"]["versions"] == [9, 9, 9]


async def test_a_run_whose_queue_is_full_shuts_out_no_other(monkeypatch):
    monkeypatch.setattr(paths, "TURNS_MAX", 2)

    async def waiting(opened, count):
        await until(lambda: len(SERVERS[0].controller.loads[opened["run_id"]].turns) == count)

    async with gateway() as (session, _):
        full, path = await opened_run(session)
        tasks = [asyncio.create_task(post(session, path, turn(key=key))) for key in ("a", "b")]
        await waiting(full, 2)
        # A repeated request takes no place of its own, and waits for the same turn.
        again = asyncio.create_task(post(session, path, turn(key="a")))
        assert await asyncio.wait([again], timeout=0.1) == (set(), {again})
        tasks.append(again)
        status, answer = await post(session, path, turn())
        assert (status, answer["error"]["message"]) == (
            429,
            f"run {full['run_id']!r} has 2 open turns, the maximum: wait for answers before you send more",
        )
        other, path = await opened_run(session)
        tasks.append(asyncio.create_task(post(session, path, turn())))
        await waiting(other, 1)
        for task in tasks:
            task.cancel()


async def test_a_run_that_is_closed_lets_go_of_its_turns():
    async with gateway() as (session, _), fleet(session, pause_s=0.02, capacity=1) as (agent,):
        opened, path = await opened_run(session)
        turns = [asyncio.create_task(post(session, path, turn(1000, prompt=[n]))) for n in range(2)]
        await until(lambda: agent.engine.running)
        await call(session, "DELETE", f"/runs/{opened['run_id']}", {"fence": 1})
        for task in turns:
            status, answer = await asyncio.wait_for(task, 20)
            assert (status, "is closed" in answer["error"]["message"]) == (409, True)
            assert isinstance(answer["rose"]["attempts"], list)
        assert not agent.engine.running
        status, answer = await post(session, path, turn())
        assert (status, answer.keys()) == (409, {"error"})


async def test_turns_are_recorded_under_their_run(tmp_path):
    with LedgerWriter.open(tmp_path, "controller", "fleet-run") as writer:
        async with gateway(writer=writer, fleet_run_id="fleet-run") as (session, _), fleet(session) as (agent,):
            opened, path = await opened_run(session, team="research")
            run_id = opened["run_id"]
            for key in (None, "k", "k"):
                assert (await post(session, path, turn(group_id="g", step=4, key=key)))[0] == 200
            agent.engine.pause_s = 1
            left = asyncio.create_task(post(session, path, turn(1000)))
            await until(lambda: agent.engine.running)
            left.cancel()
            await until(lambda: SERVERS[0].controller.loads[run_id].failed == 1)
            for _ in range(2):
                body = {"fence": 1, "events": [STEP]}
                assert await post(session, f"/runs/{run_id}/events", body) == (200, {})
            body["events"][0] = STEP | {"groups": "one"}
            status, answer = await post(session, f"/runs/{run_id}/events", body)
            assert (status, "groups" in answer["error"]["message"]) == (400, True)
            assert (await call(session, "GET", f"/runs/{run_id}"))[1]["step"] == 4
    with catalog.connect(tmp_path) as connection:
        turns = connection.execute(
            "SELECT run_id, group_id, step, turn, attempt, outcome, engine_id, output_tokens FROM turn ORDER BY turn"
        ).fetchall()
        assert turns == [
            (run_id, "g", 4, 0, 0, "completed", "e0", 3),
            (run_id, "g", 4, 1, 0, "completed", "e0", 3),
            (run_id, None, None, 2, 0, "failed", "e0", 0),
        ]
        assert connection.execute("SELECT run_id, step FROM step").fetchall() == [(run_id, 4)]
        runs = connection.execute("SELECT run_id, status, fleet_run_id FROM run").fetchall()
        assert (run_id, "running", "fleet-run") in runs
