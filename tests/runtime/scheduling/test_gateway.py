"""The gateway over real HTTP; the engines behind it are small servers that answer as SGLang does."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from rose.runtime.engines.ports import free_port
from rose.runtime.policy import routing
from rose.runtime.rollout.agent import GenerationLost
from rose.runtime.scheduling import client as client_module
from rose.runtime.scheduling import demand, turn_queue, turns, workers
from rose.runtime.scheduling.client import GenerateClient
from rose.runtime.scheduling.messages import PreemptRequest, StepRequest
from tests.runtime.scheduling.stand_ins import FakeEngine, beat, gateway, post, report, serve


class BrokenEngine(FakeEngine):
    """Answers every turn with an error status."""

    def __init__(self, status, body):
        super().__init__()
        self.status, self.body = status, body

    async def generate(self, request):
        self.requests.append(await request.json())
        return web.Response(status=self.status, text=self.body)


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


def test_a_turn_that_gets_nowhere_is_given_up_with_its_attempts(monkeypatch):
    monkeypatch.setattr(turn_queue, "QUEUE_MAX_S", 1.0)

    async def scenario():
        broken = BrokenEngine(503, "")
        async with serve(broken) as url, gateway() as (session, _):
            turn = asyncio.create_task(post(session, "/generate", {"input_ids": [1]}))
            while not turn.done():
                await beat(session, report(url))  # the agent keeps calling it alive
                await asyncio.sleep(0.01)
            status, answer = await turn
            assert status == 503
            assert len(answer["rose"]["attempts"]) == len(broken.requests)
            assert 3 <= len(broken.requests) <= 8  # each wait is longer than the one before
            _, idle = await post(session, "/generate", {"input_ids": [1]})
            assert "no rollout engine got on with the turn" in idle["error"]

    asyncio.run(scenario())


def test_a_turn_may_be_taken_off_more_often_than_it_has_tokens_as_long_as_it_gets_on(monkeypatch):
    monkeypatch.setattr(turns, "AVOID_NS", 0)

    async def scenario():
        engine = FakeEngine(pause_s=0.01)
        async with serve(engine) as url, gateway() as (session, gateway_url):
            await beat(session, report(url))
            turn = asyncio.create_task(
                GenerateClient(session, gateway_url, {"max_new_tokens": 60, "min_new_tokens": 10})(
                    [1], trajectory_id="t", turn=0
                )
            )
            wanted = PreemptRequest(engine_id="e0", kv_tokens=None, reason="test").model_dump_json()
            while not turn.done():
                await post(session, "/preempt", wanted)
                await asyncio.sleep(0.02)
                await beat(session, report(url))
            generation = await turn
            assert generation.output_ids == list(range(1, 61))
            assert len(generation.attempts) > 16
            for request in engine.requests:
                made = len(request["input_ids"]) - 1
                assert request["sampling_params"]["max_new_tokens"] == 60 - made
                assert request["sampling_params"]["min_new_tokens"] == max(0, 10 - made)

    asyncio.run(scenario())


def lent(url="http://x", lease_id="L1", left_s=1.0, **changes):
    return report(url, borrowed=True, lease_id=lease_id, lease_left_ns=int(left_s * 1e9), **changes)


def test_leases_are_renewed_only_while_there_are_turns(monkeypatch):
    monkeypatch.setattr(demand, "HOLD_NS", 100_000_000)

    async def scenario():
        async with gateway() as (session, _):
            idle = await beat(session, lent())
            assert (idle["renew"], idle["wanted_ns"], idle["step"]) == ([], {}, None)
            # An open step wants nothing by itself.
            await post(session, "/step", StepRequest(step=3, version_min=0, expires_s=60).model_dump_json())
            opened = await beat(session, lent())
            assert (opened["renew"], opened["wanted_ns"], opened["step"]) == ([], {}, 3)
            turn = asyncio.create_task(post(session, "/generate", {"input_ids": [1]}))
            await asyncio.sleep(0.1)
            wanted = await beat(session, lent())
            assert wanted["renew"] == ["L1"]
            assert wanted["wanted_ns"]["e0"] > 0
            turn.cancel()  # a client that is gone wants nothing
            await asyncio.sleep(0.5)
            assert (await beat(session, lent()))["renew"] == []

    asyncio.run(scenario())


def test_a_step_expires():
    async def scenario():
        async with serve(FakeEngine()) as url, gateway() as (session, gateway_url):
            await beat(session, report(url, policy_version=1))
            await post(session, "/step", StepRequest(step=3, version_min=5, expires_s=0.3).model_dump_json())
            assert (await beat(session, report(url, policy_version=1)))["step"] == 3
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 1})
            turn = asyncio.create_task(generate([1], trajectory_id="t", turn=0))
            assert (await turn).attempts[0].placement == "queue"
            assert (await beat(session, report(url, policy_version=1)))["step"] is None

    asyncio.run(scenario())


def test_a_poll_is_answered_when_a_turn_comes_and_when_the_last_one_is_over(monkeypatch):
    monkeypatch.setattr(demand, "HOLD_NS", 100_000_000)

    async def scenario():
        async with serve(FakeEngine(pause_s=0.1)) as url, gateway() as (session, _):
            first = await beat(session, lent(url), hold_s=9)
            assert first["wanted_ns"] == {}  # nothing was seen, so it is answered at once
            same = await beat(session, lent(url), seen=first["seq"], hold_s=0.2)
            assert same == first
            poll = asyncio.create_task(beat(session, lent(url), seen=first["seq"], hold_s=9))
            await asyncio.sleep(0.3)
            assert not poll.done()
            body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 5}}
            turn = asyncio.create_task(post(session, "/generate", body))
            wanted = await asyncio.wait_for(poll, 5)
            assert wanted["seq"] > first["seq"]
            assert wanted["wanted_ns"]["e0"] > 0
            assert wanted["renew"] == ["L1"]
            over = await asyncio.wait_for(beat(session, lent(url), seen=wanted["seq"], hold_s=9), 5)
            assert turn.done()
            assert (over["wanted_ns"], over["renew"]) == ({}, [])

    asyncio.run(scenario())


def test_an_agent_in_a_poll_is_not_silent_and_one_whose_connection_broke_is(monkeypatch):
    monkeypatch.setattr(workers, "SILENCE_MAX_NS", 200_000_000)

    async def scenario():
        async with gateway() as (session, _):
            seen = (await beat(session, report("http://x")))["seq"]
            poll = asyncio.create_task(beat(session, report("http://x"), seen=seen, hold_s=9))
            await asyncio.sleep(0.6)
            async with session.get("/workers") as response:
                assert [worker["alive"] for worker in await response.json()] == [True]
            poll.cancel()
            await asyncio.sleep(0.6)
            async with session.get("/workers") as response:
                assert [worker["alive"] for worker in await response.json()] == [False]

    asyncio.run(scenario())


def test_a_turn_that_is_longer_than_leases_is_borrowed_for():
    async def scenario():
        engine = FakeEngine(pause_s=0.05)
        async with serve(engine) as url, gateway() as (session, gateway_url):
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 20})  # a second, on leases of 0.3 s

            async def agent():
                while True:
                    reply = await beat(session, lent(url, left_s=0.3 if renewed else 0.0))
                    renewed[:] = reply["renew"]
                    await asyncio.sleep(0.05)

            renewed = ["L1"]
            beating = asyncio.create_task(agent())
            for number in range(2):  # the second when the mean is known
                renewed = ["L1"]
                generation = await generate([1], trajectory_id=f"t{number}", turn=0)
                assert [(a.outcome, a.lease_id) for a in generation.attempts] == [("completed", "L1")]
            beating.cancel()

    asyncio.run(scenario())


def test_a_turn_does_not_return_to_an_engine_whose_lease_is_being_taken_back(monkeypatch):
    monkeypatch.setattr(turns, "AVOID_NS", 0)

    async def scenario():
        engine = FakeEngine(pause_s=0.02)
        async with serve(engine) as url, gateway() as (session, gateway_url):
            await beat(session, lent(url, left_s=60))
            turn = asyncio.create_task(
                GenerateClient(session, gateway_url, {"max_new_tokens": 20})([1], trajectory_id="t", turn=0)
            )
            await asyncio.sleep(0.1)
            wanted = PreemptRequest(engine_id="e0", kv_tokens=None, reason="test")
            await post(session, "/preempt", wanted.model_dump_json())
            # A report that was on its way names the lease still; it is neither used nor renewed.
            late = await beat(session, lent(url, left_s=60))
            assert late["renew"] == []
            await asyncio.sleep(0.3)
            assert not turn.done()
            assert len(engine.requests) == 1
            await beat(session, lent(url, "L2", left_s=60))
            generation = await turn
            assert [attempt.lease_id for attempt in generation.attempts] == ["L1", "L2"]
            assert generation.output_ids == list(range(1, 21))

    asyncio.run(scenario())


def test_turns_leave_an_engine_whose_lease_is_gone():
    async def scenario():
        lending, other = FakeEngine(pause_s=0.05), FakeEngine()
        async with serve(lending) as url, serve(other) as other_url, gateway() as (session, gateway_url):
            await beat(session, lent(url))
            turn = asyncio.create_task(
                GenerateClient(session, gateway_url, {"max_new_tokens": 100})([1], trajectory_id="t", turn=0)
            )
            await asyncio.sleep(0.3)
            await beat(session, lent(url, None, left_s=0), report(other_url, "other"))
            generation = await turn
            assert [attempt.outcome for attempt in generation.attempts] == ["preempted", "completed"]
            assert generation.attempts[0].output_tokens > 0
            assert generation.output_ids == list(range(1, 101))

    asyncio.run(scenario())


def test_a_turn_that_waits_on_a_lent_device_moves_to_an_engine_that_is_idle(monkeypatch):
    monkeypatch.setattr(routing, "STALLED_MIN_NS", 50_000_000)

    async def scenario():
        held, idle = FakeEngine(pause_s=0.1), FakeEngine()
        async with serve(held) as url, serve(idle) as idle_url, gateway() as (session, gateway_url):
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 1000})
            await beat(session, report(idle_url, "idle"))
            await generate([1], trajectory_id="t0", turn=0)  # how fast it is
            await beat(session, lent(url, left_s=60), report(idle_url, "idle", capacity=0))
            turn = asyncio.create_task(generate([1], trajectory_id="t", turn=0))
            await asyncio.sleep(0.3)
            await beat(session, lent(url, left_s=60), report(idle_url, "idle"))
            generation = await asyncio.wait_for(turn, 10)
            assert [(a.engine_id, a.outcome) for a in generation.attempts] == [
                ("e0", "preempted"),
                ("idle", "completed"),
            ]
            assert generation.output_ids == list(range(1, 1001))

    asyncio.run(scenario())


def test_turns_on_a_host_that_fell_silent_go_on_elsewhere(monkeypatch):
    monkeypatch.setattr(workers, "SILENCE_MAX_NS", 200_000_000)
    monkeypatch.setattr(workers, "LOST_NS", 300_000_000)

    async def scenario():
        hung, other = FakeEngine(pause_s=3600), FakeEngine()
        async with serve(hung) as url, serve(other) as other_url, gateway() as (session, gateway_url):
            await beat(session, report(url, "hung"))
            turn = asyncio.create_task(
                GenerateClient(session, gateway_url, {"max_new_tokens": 2})([1], trajectory_id="t", turn=0)
            )
            await asyncio.sleep(0.1)
            while not turn.done():
                await beat(session, report(other_url, "other"))
                await asyncio.sleep(0.05)
            assert [attempt.outcome for attempt in (await turn).attempts] == ["failed", "completed"]

    asyncio.run(scenario())


def test_a_client_that_goes_away_takes_its_turn_with_it():
    async def scenario():
        engine = FakeEngine(pause_s=0.05)
        async with serve(engine) as url, gateway() as (session, _):
            await beat(session, report(url))
            turn = asyncio.create_task(post(session, "/generate", {"input_ids": [1]}))
            await asyncio.sleep(0.3)
            assert engine.running
            turn.cancel()
            for _ in range(40):
                await asyncio.sleep(0.05)
                if not engine.running:
                    break
            assert not engine.running
            async with session.get("/workers") as response:
                assert [worker["in_flight"] for worker in await response.json()] == [0]

    asyncio.run(scenario())


def test_a_gateway_that_is_restarted_costs_no_turn():
    async def scenario():
        engine = FakeEngine(pause_s=0.02)
        port = free_port()
        async with serve(engine) as url, aiohttp.ClientSession() as outside:
            generate = GenerateClient(outside, f"http://127.0.0.1:{port}", {"max_new_tokens": 30})
            async with gateway(port=port) as (session, _):
                await beat(session, report(url))
                playing = [asyncio.create_task(generate([1], trajectory_id=f"t{n}", turn=0)) for n in range(5)]
                await asyncio.sleep(0.3)
                assert len(engine.running) == 5
            await asyncio.sleep(0.3)
            async with gateway(port=port) as (session, _):
                await beat(session, report(url))
                for generation in await asyncio.gather(*playing):
                    assert generation.output_ids == list(range(1, 31))

    asyncio.run(scenario())


def test_waiting_turns_go_out_in_the_order_in_which_they_came():
    async def scenario():
        engine = FakeEngine(pause_s=0.02)
        async with serve(engine) as url, gateway() as (session, gateway_url):
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 1})
            playing = []
            for number in range(6):
                playing.append(asyncio.create_task(generate([number], trajectory_id=f"t{number}", turn=0)))
                await asyncio.sleep(0.02)
            await beat(session, report(url, capacity=1))
            await asyncio.gather(*playing)
            assert [request["input_ids"] for request in engine.requests] == [[number] for number in range(6)]

    asyncio.run(scenario())


def test_an_engine_never_has_more_turns_than_its_capacity():
    async def scenario():
        engine, seen = FakeEngine(pause_s=0.01), []
        async with serve(engine) as url, gateway() as (session, gateway_url):
            await beat(session, report(url, capacity=3))
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 2})
            playing = [asyncio.create_task(generate([1], trajectory_id=f"t{n}", turn=0)) for n in range(20)]
            while not all(task.done() for task in playing):
                seen.append(len(engine.running))
                await asyncio.sleep(0.005)
                await beat(session, report(url, capacity=3))
            assert max(seen) == 3

    asyncio.run(scenario())


def test_a_policy_that_keeps_serving_alone_places_nothing_on_borrowed_devices():
    async def scenario():
        async with serve(FakeEngine()) as url, gateway(policy="solo") as (session, gateway_url):
            await beat(session, lent(url, left_s=60))
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 1})
            turn = asyncio.create_task(generate([1], trajectory_id="t", turn=0))
            await asyncio.sleep(0.3)
            assert not turn.done()
            await beat(session, report(url, "own"))
            assert [attempt.engine_id for attempt in (await turn).attempts] == ["own"]

    asyncio.run(scenario())


def test_a_turn_says_itself_how_old_weights_may_be():
    async def scenario():
        async with serve(FakeEngine()) as url, gateway() as (session, gateway_url):
            await beat(session, report(url, policy_version=4))
            generate = GenerateClient(session, gateway_url, {"max_new_tokens": 1}, version_min=5)
            turn = asyncio.create_task(generate([1], trajectory_id="t", turn=0))
            await asyncio.sleep(0.3)
            # An engine that could not take it is not wanted either.
            assert not turn.done()
            assert (await beat(session, report(url, policy_version=4)))["wanted_ns"] == {}
            assert (await beat(session, report(url, policy_version=5)))["wanted_ns"].keys() == {"e0"}
            assert (await turn).attempts[0].policy_version == 5

    asyncio.run(scenario())


def test_a_turn_waits_for_weights_that_are_new_enough():
    async def scenario():
        async with serve(FakeEngine()) as url, gateway() as (session, gateway_url):
            await post(session, "/step", StepRequest(step=5, version_min=5, expires_s=60).model_dump_json())
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
        ("/generate", {"input_ids": [1], "sampling_params": {"n": 2}}, "sampling_params.n"),
        ("/generate", {"input_ids": [1], "stream": True}, "stream"),
        ("/heartbeat", {"device_id": "d", "engines": [], "hold_s": 11}, "hold_s"),
        ("/step", {"step": 0, "version_min": 0}, "expires_s"),
        ("/step", {"step": 0, "version_min": 0, "expires_s": 9, "colour": "red"}, "colour"),
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


def test_a_gateway_that_stays_away_loses_the_turn_with_a_reason(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_S", 1.0)

    async def scenario():
        async with aiohttp.ClientSession() as session:
            generate = GenerateClient(session, f"http://127.0.0.1:{free_port()}", {"max_new_tokens": 1})
            with pytest.raises(GenerationLost, match="is away"):
                await generate([1], trajectory_id="t", turn=0)

    asyncio.run(scenario())
