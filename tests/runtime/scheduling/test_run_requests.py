import re
import shlex
from pathlib import Path

import aiohttp

from rose.runtime.scheduling.runs import registry
from tests.runtime.scheduling.stand_ins import SERVERS, beat, call, fleet, gateway, open_run, post, publish, until


async def test_a_run_is_opened_published_for_generated_through_and_closed():
    async with gateway(models=["tiny"]) as (session, url), fleet(session) as (agent,):
        status, answer = await post(session, "/runs", {"name": "grpo", "model": "other"})
        assert (status, "'other'" in answer["error"]["message"], "tiny" in answer["error"]["message"]) == (
            409,
            True,
            True,
        )
        opened = await open_run(session, team="research", tags={"project": "x"})
        assert (opened["version"], opened["fence"]) == (None, 1)
        assert opened["url"] == f"{url}/runs/{opened['run_id']}"
        assert await publish(session, opened, 3) == (200, {})
        body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}, "rose": {"trajectory_id": "t"}}
        status, answer = await post(session, f"{opened['url']}/generate", body)
        assert (status, answer["output_ids"]) == (200, [2, 3])
        assert answer["meta_info"]["rose"]["versions"] == [3, 3]
        assert [target["version"] for target in agent.targets] == [3]
        status, shown = await call(session, "GET", f"/runs/{opened['run_id']}")
        wanted = {"state": "open", "team": "research", "version": 3, "engines": ["e0"]}
        assert {name: shown[name] for name in wanted} == wanted
        close = {"fence": 1, "outcome": "ended"}
        assert await call(session, "DELETE", f"/runs/{opened['run_id']}", close) == (200, {})
        status, answer = await post(session, f"{opened['url']}/generate", body)
        assert (status, "closed" in answer["error"]["message"]) == (409, True)


async def test_a_run_trains_on_a_device_of_the_fleet():
    async with gateway(models=["tiny"], devices={"trainer-0": "local"}) as (session, _):
        wanted = {"name": "grpo", "model": "tiny", "trainer_device": "trainer-1"}
        status, answer = await post(session, "/runs", wanted)
        assert (status, answer["error"]["message"]) == (
            409,
            "unknown trainer_device 'trainer-1'; did you mean 'trainer-0'?",
        )
        assert (await call(session, "GET", "/runs"))[1] == []
        assert (await post(session, "/runs", {**wanted, "trainer_device": "trainer-0"}))[0] == 200


async def test_an_expired_run_that_is_forgotten_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(registry, "ENDED_MAX", 1)
    async with gateway(models=["tiny"]) as (session, _), fleet(session):
        opened = []
        for _ in range(2):
            opened.append(await open_run(session, expires_s=0.3))
            await publish(session, opened[-1])
            body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
            assert (await post(session, f"/runs/{opened[-1]['run_id']}/generate", body))[0] == 200
        await until(lambda: not any(run.is_open for run in SERVERS[0].controller.runs))
        _, shown = await call(session, "GET", "/runs")
        assert [(run["run_id"], run["state"]) for run in shown] == [(opened[1]["run_id"], "expired")]
        assert list(SERVERS[0].controller.loads) == [opened[1]["run_id"]]
        assert (await call(session, "GET", f"/runs/{opened[0]['run_id']}"))[0] == 404


async def test_a_loopback_url_is_refused_by_a_fleet_on_several_hosts():
    async with gateway(models=["tiny"]) as (session, _):
        opened, url = await open_run(session), "http://127.0.0.1:5"
        for device_id, host in (("a", "near"), ("b", "near"), ("older", None)):
            await beat(session, device_id=device_id, host=host)
        assert await publish(session, opened, 0, url) == (200, {})
        await beat(session, device_id="c", host="far")
        status, answer = await publish(session, opened, 1, url)
        assert status == 409
        assert "(far, near)" in answer["error"]["message"]
        assert "open the run with `host`" in answer["error"]["message"]
        assert await publish(session, opened, 1, "http://10.0.0.7:5") == (200, {})


DOCUMENT = Path(__file__).parents[3] / "docs" / "fleet.md"


def requests():
    for block in re.findall(r"^```sh\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            words = shlex.split(line)
            if words[0] == "curl":
                (url,) = (word for word in words if word.startswith("http"))
                body = words[words.index("-d") + 1] if "-d" in words else None
                method = words[words.index("-X") + 1] if "-X" in words else "GET" if body is None else "POST"
                assert "Authorization: Bearer $ROSE_TOKEN" in words
                yield method, "/" + url.split("/", 3)[3], body


async def test_the_requests_of_the_document_are_answered():
    opened = None
    async with gateway("token-of-the-tests", models=["frozenlake-tiny"]) as (session, _):
        await beat(session, device_id="serving-0")
        for method, path, body in requests():
            run_id = "" if opened is None else opened["run_id"]
            status, answer = await call(session, method, path.replace("grpo-0123456789ab", run_id), body)
            assert status == 200, (method, path, answer)
            if path == "/runs":
                opened = answer
        assert opened.keys() == {"run_id", "fence", "version", "step", "url", "expires_s"}
        async with aiohttp.ClientSession() as stranger:
            assert (await call(stranger, "POST", opened["url"] + "/renew", "{}"))[0] == 401
