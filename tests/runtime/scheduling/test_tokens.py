import json

import pytest

from rose import tokens
from rose.http_calls import authorization
from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.scheduling.messages import Heartbeat
from tests.runtime.scheduling.stand_ins import (
    AGENT_TOKEN,
    FakeEngine,
    beat,
    call,
    gateway,
    open_run,
    post,
    publish,
    report,
    serve,
)

TOKEN, STORE_TOKEN = "token-of-the-clients", "token-of-a-store-of-team-a"
PREEMPT = json.dumps({"engine_id": "e0", "reason": "x"})
DEVICES = {"gpu-0": "rack-1", "gpu-1": "rack-2"}
OPERATOR = "token-of-the-operator"


async def ask(session, method, path, token, body=None):
    async with session.request(method, path, data=body, headers=authorization(token)) as response:
        return response.status, await response.text()


def heartbeat(url, run_id=None, device_id="gpu-0", host="rack-1", **changes):
    engine = report(url, "e0", device_id=device_id, run_id=run_id, token="token-of-an-engine", **changes)
    return Heartbeat(device_id=device_id, engines=[engine], host=host).model_dump_json()


async def shown(session):
    paths = ("/status", "/runs", "/metrics", "/readiness")
    return "\n".join([(await ask(session, "GET", path, TOKEN))[1] for path in paths])


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_whoever_is_no_agent_is_told_no_store_and_gets_no_turn(token):
    engine = FakeEngine()
    async with gateway(token, devices=DEVICES) as (session, _), serve(engine) as url:
        opened = await open_run(session, team="a")
        await publish(session, opened, token=STORE_TOKEN)
        forged = heartbeat(url, opened["run_id"])
        for sent in (None, TOKEN, AGENT_TOKEN[:-1], STORE_TOKEN):
            for path, body in (("/heartbeat", forged), ("/preempt", PREEMPT)):
                status, text = await ask(session, "POST", path, sent, body)
                assert status == 401
                assert "agent" in text
                assert STORE_TOKEN not in text
        after = await shown(session)
        assert '"e0"' not in after
        assert "rack-1" not in after
        assert "gpu-0: its agent has not reported" in after
        # The agent is told the store of the run that its engine works for, and the run's turns go there.
        status, text = await ask(session, "POST", "/heartbeat", AGENT_TOKEN, forged)
        assert status == 200
        assert json.loads(text)["targets"]["e0"]["token"] == STORE_TOKEN
        assert (await post(session, f"/runs/{opened['run_id']}/generate", {"input_ids": [1]}))[0] == 200
        text = await shown(session) + (await ask(session, "GET", f"/runs/{opened['run_id']}", TOKEN))[1]
        assert "e0" in text
        assert STORE_TOKEN not in text
        assert "token-of-an-engine" not in text


async def test_the_agent_token_opens_no_path_of_clients_and_operators():
    async with gateway(TOKEN, devices=DEVICES) as (session, _):
        run_id = (await open_run(session))["run_id"]
        run = f"/runs/{run_id}"
        for path in ("/status", "/runs", run, "/metrics", "/readiness", "/health"):
            assert (await ask(session, "GET", path, AGENT_TOKEN))[0] == 401, path
        for path in ("/runs", f"{run}/generate", f"{run}/versions", f"{run}/events", "/devices/gpu-0/drain"):
            assert (await ask(session, "POST", path, AGENT_TOKEN, "{}"))[0] == 401, path
        assert (await ask(session, "DELETE", run, AGENT_TOKEN, "{}"))[0] == 401
        # Another spelling of an agents' path is none of theirs.
        for path in ("/heartbeat/", "/Heartbeat"):
            assert (await ask(session, "POST", path, AGENT_TOKEN, "{}"))[0] == 401, path


@pytest.mark.parametrize(
    ("device_id", "host", "named"),
    [
        ("mine", "rack-1", "device_id 'mine' is not in the fleet file"),
        ("gpu-1", "rack-1", "host 'rack-1' reports device 'gpu-1', which is on host 'rack-2'"),
        ("gpu-0", "elsewhere", "host 'elsewhere'"),
        ("gpu-0", None, "host None"),
    ],
)
async def test_a_device_or_host_that_the_fleet_file_does_not_name_leaves_no_trace(device_id, host, named):
    async with gateway(devices=DEVICES) as (session, _):
        body = heartbeat("http://127.0.0.1:1", device_id=device_id, host=host)
        status, text = await ask(session, "POST", "/heartbeat", AGENT_TOKEN, body)
        assert status == 403
        assert named in text
        for other in ("mine", "gpu-1"):
            engines = [report("http://127.0.0.1:1", device_id=other)]
            body = Heartbeat(device_id="gpu-0", host="rack-1", engines=engines).model_dump_json()
            assert (await ask(session, "POST", "/heartbeat", AGENT_TOKEN, body))[0] == 403
        assert (await call(session, "GET", "/status"))[1]["devices"] == []
        after = await shown(session)
        assert not any(name in after for name in ("mine", "elsewhere", "rack-1", '"e0"'))


async def test_devices_of_every_host_report_drained_ones_and_those_that_train_too():
    async with gateway(devices=DEVICES) as (session, _):
        opened = await open_run(session, trainer_device="gpu-1")
        assert (await post(session, "/devices/gpu-1/drain", {}))[0] == 200
        for device_id, host in DEVICES.items():
            await beat(session, device_id=device_id, host=host)
        reply = await beat(session, device_id="gpu-1", host="rack-2")
        assert (reply["drained"], reply["train_run_id"]) == (True, opened["run_id"])
        _, status = await call(session, "GET", "/status")
        assert {device["device_id"]: device["host"] for device in status["devices"]} == DEVICES


async def test_a_controller_without_an_agent_token_hears_no_agent():
    port = free_port()
    server = Gateway("127.0.0.1", port)
    await server.start()
    try:
        async with gateway() as (session, _):
            for sent in ("", TOKEN):
                status, text = await ask(session, "POST", f"http://127.0.0.1:{port}/heartbeat", sent)
                assert status == 401
                assert "`rose down --keep-runs` and `rose up`" in text
    finally:
        await server.stop()


@pytest.fixture
def secrets(tmp_path):
    store = tmp_path / "tokens.json"
    return {
        "host": tokens.create(store, "host", (), ("host.*",)),
        "finance": tokens.create(store, "finance", ("read",)),
        "player": tokens.create(store, "player", ("generate",)),
        "trainer": tokens.create(store, "trainer", ("generate", "publish")),
        "boss": tokens.create(store, "boss", ("admin",)),
        "operator": OPERATOR,
    }


async def test_each_scope_opens_its_own_paths_and_no_other(tmp_path, secrets):
    requests = {
        "status": ("GET", "/status", None),
        "runs": ("GET", "/runs", None),
        "open": ("POST", "/runs", {"name": "x"}),
        "turn": ("POST", "/runs/none/generate", {"input_ids": [1]}),
        "drain": ("POST", "/devices/none/drain", {}),
    }

    opened = {}
    async with gateway(OPERATOR, tokens_file=tmp_path / "tokens.json") as (session, _):
        for name, secret in {**secrets, "nobody": "", "stranger": "x" * 20}.items():
            for request, (method, path, body) in requests.items():
                status, _ = await ask(session, method, path, secret, body and json.dumps(body))
                assert status != 500
                if status not in (401, 403):
                    opened.setdefault(name, set()).add(request)
        assert (await ask(session, "POST", "/ledger/query", OPERATOR, '{"sql": "FROM lease"}'))[0] == 404, "no ledger"
    looks = {"status", "runs"}
    assert opened == {
        "finance": looks,
        "player": looks | {"turn"},
        "trainer": looks | {"turn", "open"},
        "boss": set(requests),
        "operator": set(requests),
    }


def test_named_tokens_guard_an_address_that_others_reach(tmp_path, secrets):
    Gateway("0.0.0.0", 0, tokens_file=tmp_path / "tokens.json")
