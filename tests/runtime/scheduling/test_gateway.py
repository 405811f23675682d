import asyncio
import socket
from contextlib import AsyncExitStack

import aiohttp
import pytest
from starlette.responses import Response

from rose.client.address import RunAddress
from rose.client.turns import TurnClient
from rose.ledger.address import OpenAddressError
from rose.private_files import SecretError
from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.gateway import Gateway, http_server
from rose.runtime.scheduling.gateway.http_server import HttpServer
from tests.runtime.scheduling.stand_ins import FakeEngine, beat, gateway, play, post, reported, serve, until

TOKEN = "token-of-the-tests"


@pytest.mark.parametrize("tokens", [1, 200_000], ids=["short", "long"])
async def test_a_client_that_goes_away_takes_its_turn_with_it(tokens):
    engine = FakeEngine(pause_s=0.05)
    async with serve(engine) as url, play() as run:
        await run.beat(run.report(url))
        turn = asyncio.create_task(run.post({"input_ids": [1] * tokens}))
        await until(lambda: engine.running)
        turn.cancel()
        await until(lambda: not engine.running)
        assert [worker["in_flight"] for worker in await reported(run.session)] == [0]


async def test_a_gateway_that_is_restarted_costs_no_turn(tmp_path):
    engine, port = FakeEngine(pause_s=0.02), free_port()
    async with serve(engine) as url, AsyncExitStack() as stack:
        async with play(port=port, state=tmp_path) as run:
            await run.beat(run.report(url))
            address = RunAddress(url=f"http://127.0.0.1:{port}", run_id=run.run_id, fence=1)
            outside = await stack.enter_async_context(TurnClient(address))
            playing = [asyncio.create_task(outside.turn([1], {"max_new_tokens": 30})) for _ in range(5)]
            await until(lambda: len(engine.running) == 5)
        async with gateway(port=port, state=tmp_path) as (session, _):
            await beat(session, run.report(url))
            for generation in await asyncio.gather(*playing):
                assert generation.output_ids == list(range(1, 31))


async def test_the_body_of_an_answer_does_not_wait_until_its_head_is_acknowledged():
    server = HttpServer(Response(), "127.0.0.1", free_port())
    server.bind()
    with socket.create_connection(server._listening.getsockname()), server._listening.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await server.stop()


async def test_fields_the_gateway_does_not_read_are_passed_on_or_ignored():
    engine = FakeEngine()
    async with serve(engine) as url, play() as run:
        await run.beat(run.report(url))
        sampling = {"max_new_tokens": 2, "temperature": 0.5, "stop_token_ids": [7]}
        body = {"input_ids": [1], "sampling_params": sampling, "stream": False, "rose": {"trajectory_id": 5}}
        assert (await run.post(body))[0] == 200
        assert engine.requests[0]["sampling_params"] == sampling
        assert (await run.post({"input_ids": [1], "sampling_params": None}))[0] == 200
        assert engine.requests[1]["sampling_params"] == {"max_new_tokens": 128}


async def test_a_web_page_asks_a_gateway_without_a_token_for_nothing():
    """A browser on its host sends any page's requests, with the page's origin; its name may resolve to this host."""
    strangers = ("evil.example", "evil.example:30100", "127.0.0.1.evil.example", "0.0.0.0:30100", "10.0.0.1")
    async with gateway(devices={"gpu-0": "rack-1"}) as (session, url):
        for origin in ("http://elsewhere.example", "null", "http://127.0.0.1:1"):
            async with session.post("/devices/gpu-0/drain", data=b"{}", headers={"Origin": origin}) as response:
                assert response.status == 403
                assert "Origin" in (await response.json())["error"]["message"]
        for headers in ({}, {"Origin": url}):
            async with session.post("/devices/gpu-0/drain", data=b"{}", headers=headers) as response:
                assert response.status == 200
        for path in ("/status", "/metrics", "/health", "/heartbeat", "/runs/a/generate"):
            method = "POST" if path in ("/heartbeat", "/runs/a/generate") else "GET"
            for host in strangers:
                async with session.request(method, path, headers={"Host": host}) as response:
                    assert response.status == 403, host
            for host in ("localhost", "LOCALHOST:30100", "127.0.0.1:1", "[::1]:30100"):
                async with session.request(method, path, headers={"Host": host}) as response:
                    assert response.status != 403, host


async def test_with_a_token_any_name_is_answered_but_no_stranger_and_no_page_of_another_site_changes_anything():
    async with gateway(TOKEN, devices={"gpu-0": "rack-1"}) as (session, url):
        for headers, status in (
            ({"Host": "rose.example"}, 200),
            ({"Host": "rose.example", "Origin": "https://rose.example"}, 200),
            ({"Host": "rose.example", "Origin": "https://evil.example"}, 403),
            ({"Host": "rose.example", "Origin": "null"}, 403),
        ):
            async with session.post("/devices/gpu-0/drain", headers=headers) as response:
                assert response.status == status, headers
            async with session.get("/status", headers=headers) as response:
                assert response.status == 200, headers
        for headers in ({}, {"Authorization": f"Bearer {TOKEN[:-1]}"}, {"Authorization": "Bearer sécret"}):
            async with aiohttp.ClientSession(headers=headers) as stranger, stranger.get(f"{url}/status") as response:
                assert response.status == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "rack-1"])
def test_a_gateway_that_other_machines_reach_needs_a_token(host):
    with pytest.raises(OpenAddressError, match=f"{host} can be reached from other machines: .* `gateway.token`"):
        Gateway(host, 0)
    with pytest.raises(SecretError, match="has 5 characters and needs 16"):
        Gateway(host, 0, "short")


async def test_an_unknown_path_is_refused_in_json():
    requests = [("GET", "/nothing", 404), ("GET", "/runs/a/generate", 405), ("POST", "/runs/a/b/generate", 404)]
    async with gateway() as (session, _):
        for method, path, status in [*requests, ("PUT", "/runs", 405)]:
            async with session.request(method, path) as response:
                assert (response.status, set(await response.json())) == (status, {"error"})
        status, answer = await post(session, "/generate", {"input_ids": [1]})
        assert (status, "open a run at POST /runs" in answer["error"]["message"]) == (404, True)


async def test_a_body_beyond_the_bound_is_refused_with_or_without_its_length(monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_BYTES_MAX", 1000)

    async def pieces():
        for _ in range(20):
            yield b"1" * 100

    async with gateway() as (session, _):
        for path in ("/runs/a/generate", "/runs"):
            for body in (b"1" * 2000, pieces()):
                async with session.post(path, data=body) as response:
                    assert response.status == 413
                    assert "at most" in (await response.json())["error"]["message"]
