import asyncio

from rose.runtime.policy import sharing
from tests.runtime.scheduling.stand_ins import beat, call, fleet, gateway, open_run, post, publish, report, until


def body(tokens=3, **labels):
    return {"input_ids": [1], "sampling_params": {"max_new_tokens": tokens}, "rose": labels}


async def begin(session, name, **fields):
    opened = await open_run(session, name, **fields)
    await publish(session, opened, url=f"http://{name}", token=f"token-of-{name}")
    return opened["run_id"]


async def shown(session, path, holds):
    async with asyncio.timeout(30):
        while not holds(answer := (await call(session, "GET", path))[1]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return answer


async def play(session, run_id, turns, stop):
    done = 0

    async def one():
        nonlocal done
        while not stop.is_set():
            status, answer = await post(session, f"/runs/{run_id}/generate", body())
            assert status == 200, answer
            assert answer["meta_info"]["rose"]["versions"] == [0, 0, 0]
            done += 1

    await asyncio.gather(*(one() for _ in range(turns)))
    return done


async def test_two_runs_share_engines_and_no_turn_is_made_with_the_other_s_weights():
    async with gateway() as (session, _), fleet(session, 2, pause_s=0.005, capacity=2) as agents:
        a, b = await begin(session, "a"), await begin(session, "b")
        stop = asyncio.Event()
        playing = [asyncio.create_task(play(session, run_id, 4, stop)) for run_id in (a, b)]
        await shown(session, "/runs", lambda runs: all(run["turns_completed"] > 10 for run in runs))
        runs = await shown(session, "/runs", lambda runs: [len(run["engines"]) for run in runs] == [1, 1])
        assert {run["state"] for run in runs} == {"open"}
        stop.set()
        await asyncio.gather(*playing)
        targets = [target for agent in agents for target in agent.targets]
        assert {(target["run_id"], target["url"], target["token"]) for target in targets} == {
            (a, "http://a", "token-of-a"),
            (b, "http://b", "token-of-b"),
        }


async def test_two_runs_of_two_models_have_one_engine_in_turns(monkeypatch):
    monkeypatch.setattr(sharing, "HOLD_MIN_NS", 100_000_000)
    options = {"pause_s": 0.01, "start_s": 0.05, "model": "tiny"}
    async with gateway(models=["tiny", "chat"]) as (session, _), fleet(session, 1, **options) as (agent,):
        status, answer = await post(session, "/runs", {"name": "c", "model": "chta"})
        assert (status, "did you mean 'chat'" in answer["error"]["message"]) == (409, True)
        a, b = await begin(session, "a"), await begin(session, "b", model="chat")
        stop = asyncio.Event()
        playing = [asyncio.create_task(play(session, run_id, 4, stop)) for run_id in (a, b)]
        await shown(session, "/runs", lambda runs: any("model 'tiny'" in (run["waits"] or "") for run in runs))
        await shown(session, "/runs", lambda runs: all(run["turns_completed"] > 10 for run in runs))
        await until(lambda: len(agent.models) >= 4)
        stop.set()
        await asyncio.gather(*playing)
        assert agent.models[:4] == ["tiny", "chat", "tiny", "chat"]
        runs_of = {"tiny": a, "chat": b}
        begun, *later = " ".join("|" if target is None else target["run_id"] for target in agent.targets).split("|")
        assert [set(had.split()) for had in (begun, *later[:3])] == [{runs_of[model]} for model in agent.models[:4]]
        status = (await call(session, "GET", "/status"))[1]
        assert (status["model"], status["models"]) == ("tiny", ["tiny", "chat"])
        assert status["devices"][0]["engines"][0]["model"] in agent.models[-2:]


async def test_turns_wait_for_a_model_that_does_not_start_and_say_why():
    async with gateway(models=["tiny", "chat"]) as (session, _):
        run_id = await begin(session, "b", model="chat")
        await beat(session, report("http://x", model="tiny"))
        waiting = asyncio.create_task(post(session, f"/runs/{run_id}/generate", body()))
        await shown(session, "/runs", lambda runs: runs[0]["engines"] == ["e0"])
        await beat(session, report("http://x", model="tiny", alive=False, unstarted="chat", fault="no memory"))
        why = "engine e0 cannot start with model 'chat': no memory"
        assert (await call(session, "GET", "/runs"))[1][0]["waits"] == why
        assert (await call(session, "GET", "/status"))[1]["devices"][0]["not_lent"] == why
        await call(session, "DELETE", f"/runs/{run_id}", {"fence": 1})
        assert (await waiting)[0] == 409


async def test_one_engine_goes_from_run_to_run_and_takes_their_turns_along(monkeypatch):
    monkeypatch.setattr(sharing, "HOLD_MIN_NS", 100_000_000)
    async with gateway() as (session, _), fleet(session, 1, pause_s=0.01, sync_s=0.01) as (agent,):
        a, b = await begin(session, "a"), await begin(session, "b")
        # Longer than a hold, so that it is moved in mid-turn and goes on from what it has.
        making = [
            asyncio.create_task(post(session, f"/runs/{run_id}/generate", body(40, trajectory_id="t")))
            for run_id in (a, b)
        ]
        outcomes = []
        for task in making:
            status, answer = await asyncio.wait_for(task, 20)
            assert (status, answer["output_ids"]) == (200, list(range(1, 41)))
            outcomes += [attempt["outcome"] for attempt in answer["meta_info"]["rose"]["attempts"]]
        assert outcomes.count("preempted") >= 1
        assert "failed" not in outcomes
        assert len(agent.targets) >= 3


async def test_a_higher_priority_takes_the_engine_and_gives_it_back():
    async with gateway() as (session, _), fleet(session, 1, pause_s=0.005, capacity=2):
        low, high = await begin(session, "low"), await begin(session, "high", priority=5)
        stop = asyncio.Event()
        playing = asyncio.create_task(play(session, low, 4, stop))
        await shown(session, f"/runs/{low}", lambda run: run["turns_completed"] > 3)
        ended = asyncio.Event()
        urgent = asyncio.create_task(play(session, high, 4, ended))
        await shown(session, f"/runs/{high}", lambda run: run["engines"] == ["e0"] and run["turns_completed"] > 3)
        ended.set()
        await urgent
        await shown(session, f"/runs/{low}", lambda run: run["engines"] == ["e0"])
        stop.set()
        await playing


async def test_what_an_expired_run_had_is_free_and_it_can_be_resumed():
    async with gateway() as (session, _), fleet(session, 1, pause_s=0.02):
        run_id = await begin(session, "a", expires_s=0.2)
        # A turn that takes longer keeps its run open.
        assert (await post(session, f"/runs/{run_id}/generate", body(20)))[0] == 200
        run = (await call(session, "GET", f"/runs/{run_id}"))[1]
        assert (run["state"], run["engines"]) == ("open", ["e0"])
        run = await shown(session, f"/runs/{run_id}", lambda run: run["state"] != "open")
        assert (run["state"], run["engines"], run["reason"]) == ("expired", [], "not heard of")
        status, answer = await post(session, f"/runs/{run_id}/generate", body())
        assert (status, "resume it" in answer["error"]["message"]) == (409, True)
        opened = await open_run(session, resume=run_id, expires_s=60)
        assert (opened["fence"], opened["version"]) == (2, 0)
        assert (await post(session, f"/runs/{run_id}/generate", body()))[0] == 200


async def test_a_device_s_agent_is_told_which_run_trains_on_it_and_whose_its_engines_are():
    async with gateway() as (session, _), fleet(session, 1) as (agent,):
        run_id = await begin(session, "a", trainer_device=agent.device_id)
        await until(lambda: agent.reply.get("train_run_id") == run_id)
        assert (await post(session, f"/runs/{run_id}/generate", body()))[0] == 200
        await until(lambda: agent.reply["rollout_run_ids"] == {"e0": run_id})
        other = await begin(session, "b", trainer_device=agent.device_id)
        await until(lambda: agent.reply["train_run_id"] == other)
        # Whoever went on with the first one left the other as it was.
        await open_run(session, resume=run_id, trainer_device=agent.device_id)
        await until(lambda: agent.reply["train_run_id"] == run_id)
        await call(session, "DELETE", f"/runs/{other}", {"fence": 1})
        await call(session, "DELETE", f"/runs/{run_id}", {"fence": 2})
        await until(lambda: (agent.reply["train_run_id"], agent.reply["rollout_run_ids"]) == (None, {"e0": None}))
