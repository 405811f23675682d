import openai
import pytest

from rose import tokens
from rose.http_calls import authorization
from rose.transfer.wire.origin_rules import OriginRules
from tests.runtime.scheduling.stand_ins import call

OPERATOR = "token-of-the-operator"
BODY = {"prompt": "a", "model": "words"}


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "tokens.json"

    def make(name, *scopes, **bounds):
        return tokens.create(path, name, scopes, **bounds)

    make.path = path
    return make


async def ask(session, key, method, path, body=None):
    async with session.request(method, path, json=body, headers=authorization(key)) as response:
        return response.status, await response.json()


async def test_each_token_has_a_run_of_its_own_which_its_team_pays(speaking, keys):
    a, b = keys("a", "generate", team="red"), keys("b", "generate", team="blue")
    async with speaking(token=OPERATOR, tokens_file=keys.path, published=False) as (session, url, server, _):
        for key in (a, b, a):
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as ai:
                assert (await ai.completions.create(**BODY)).choices[0].text == "a b c"
        runs = {run.facts.tags["token"]: run.facts.team for run in server.controller.runs}
        assert runs == {"a": "red", "b": "blue"}
        _, listed = await ask(session, a, "GET", "/v1/models")
        assert len(listed["data"]) == 2
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as ai:
            with pytest.raises(openai.AuthenticationError):
                await ai.completions.create(**BODY)


async def test_a_run_is_its_team_s_alone(speaking, keys):
    both = ("generate", "publish")
    a, b, none = keys("a", *both, team="red"), keys("b", *both, team="blue"), keys("none", *both)
    async with speaking(token=OPERATOR, tokens_file=keys.path, published=False) as (session, _, _, _):
        opening = {"name": "grpo", "model": "words"}
        assert (await ask(session, a, "POST", "/runs", {**opening, "team": "blue"}))[0] == 403
        status, run = await ask(session, a, "POST", "/runs", opening)
        assert status == 200
        path, fence = f"/runs/{run['run_id']}", {"fence": run["fence"]}
        assert (await ask(session, OPERATOR, "GET", path))[1]["team"] == "red"
        version = {**fence, "version": 0, "url": "http://store"}
        wanted = [("POST", f"{path}/renew", fence), ("POST", f"{path}/versions", version)]
        wanted += [("POST", f"{path}/generate", {"input_ids": [1]}), ("POST", f"{path}/generate", {"text": "a"})]
        wanted += [("POST", f"{path}/pause_generation", {"mode": "keep"}), ("POST", f"{path}/continue_generation", {})]
        wanted += [("POST", f"{path}/events", {**fence, "events": [{}]}), ("POST", f"{path}/v1/completions", BODY)]
        wanted += [("POST", "/v1/completions", {**BODY, "model": run["run_id"]}), ("DELETE", path, fence)]
        for method, where, body in wanted:
            for other in (b, none):
                assert (await ask(session, other, method, where, body))[0] == 403, where
        assert (await ask(session, b, "POST", "/runs", {**opening, "resume": run["run_id"]}))[0] == 403
        for method, where, body in wanted:
            expected = 400 if where.endswith("events") else 200
            assert (await ask(session, a, method, where, body))[0] == expected, where
        assert (await ask(session, OPERATOR, "DELETE", path, fence))[0] == 200


async def test_a_token_of_one_run_plays_for_it_alone(speaking, keys):
    keys("reader", "read")
    async with speaking(token=OPERATOR, tokens_file=keys.path, published=False) as (session, _, _, _):
        status, run = await call(session, "POST", "/runs", {"name": "one", "model": "words", "team": "red"})
        assert status == 200
        body = {"fence": run["fence"], "version": 0, "url": "http://store"}
        assert (await call(session, "POST", f"/runs/{run['run_id']}/versions", body))[0] == 200
        key = keys("one", "generate", team="red", run=run["run_id"])
        status, made = await ask(session, key, "POST", "/v1/completions", BODY)
        assert (status, made["choices"][0]["rose"]["run_id"]) == (200, run["run_id"])
        _, other = await call(session, "POST", "/runs", {"name": "two", "model": "words", "team": "red"})
        assert (await ask(session, key, "POST", "/v1/completions", {**BODY, "model": other["run_id"]}))[0] == 404
        assert (await ask(session, key, "POST", f"/runs/{other['run_id']}/generate", {"input_ids": [1]}))[0] == 403


async def test_control_needs_the_scope_to_publish(speaking, keys):
    key = keys("player", "generate")
    async with speaking(token=OPERATOR, tokens_file=keys.path, published=False) as (session, _, server, _):
        for path in ("/pause_generation", "/update_weights_from_disk", "/workers", "/v1/rl/engine/pause_generation"):
            status, refused = await ask(session, key, "POST", path, {})
            assert (status, "publish" in refused["error"]["message"]) == (403, True)
        assert list(server.controller.runs) == []
        assert (await ask(session, key, "POST", "/devices/d/drain", {}))[0] == 403
        async with session.get("/metrics", headers=authorization(key)) as response:
            assert response.status == 403


async def test_a_team_publishes_folders_of_the_host_where_the_fleet_file_lets_it(speaking, keys, checkpoint):
    key, body = keys("a", "generate", "publish", team="red"), {"model_path": str(checkpoint)}
    rules = {"token": OPERATOR, "tokens_file": keys.path, "published": False}
    async with speaking(**rules) as (session, _, server, _):
        status, refused = await ask(session, key, "POST", "/update_weights_from_disk", body)
        assert (status, "origins.files" in refused["error"]["message"]) == (403, True)
        assert list(server.controller.runs) == []
        assert (await ask(session, OPERATOR, "POST", "/update_weights_from_disk", body))[0] == 200
    async with speaking(**rules, origins=OriginRules(files=True)) as (session, _, _, _):
        assert (await ask(session, key, "POST", "/update_weights_from_disk", body))[0] == 200


async def test_nobody_learns_the_runs_of_another_team_from_an_error(speaking, keys):
    key = {team: keys(team, "generate", "publish", team=team) for team in ("red", "blue")}
    async with speaking(token=OPERATOR, tokens_file=keys.path, published=False) as (session, _, _, _):
        _, run = await ask(session, key["red"], "POST", "/runs", {"name": "grpo", "model": "words"})
        path = f"/runs/{run['run_id'][:-1]}"
        for where, body in ((f"{path}/generate", {"input_ids": [1]}), (f"{path}/renew", {"fence": 1})):
            for who, told in ((key["red"], True), (OPERATOR, True), (key["blue"], False)):
                status, refused = await ask(session, who, "POST", where, body)
                assert (status, run["run_id"] in refused["error"]["message"]) == (404, told)
