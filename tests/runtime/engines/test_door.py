import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time

import aiohttp
import pytest

from rose.runtime.engines import door
from rose.runtime.engines.door import Door
from rose.runtime.engines.ports import free_port

ADDRESS = "127.0.0.2"
_ENGINE = """
import asyncio, json, sys
from aiohttp import web
from rose.runtime.engines import door

door.open_from_within()
ended = []

async def generate(request):
    body = await request.json()
    if body["ask"] == "stream":
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(3):
            await response.write(f"data: {number}\\n\\n".encode())
            await asyncio.sleep(0.02)
        if body.get("break"):
            request.transport.abort()
        return response
    if body["ask"] == "wait":
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(body["rid"])
            raise
    if body["ask"] == "no":
        return web.json_response({"error": {"message": "too long"}}, status=400)
    return web.json_response({"asked": len(body.get("ids", ())), "ended": ended})

app = web.Application(client_max_size=64 << 20)
app.add_routes([web.post("/generate", generate), web.post("/update_weights_from_disk", generate)])

async def main():
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[1])).start()
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def start(way_in, port):
    environment = {**os.environ, **door.environment(way_in, port)}
    return subprocess.Popen(
        [sys.executable, "-c", _ENGINE, str(port)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture(scope="module")
def engine():
    port = free_port("127.0.0.1", ADDRESS)
    process = start(Door(ADDRESS, "secret"), port)
    assert process.stdout.readline() == "up\n", process.stderr.read()
    yield f"http://{ADDRESS}:{port}"
    process.kill()
    process.communicate()


async def post(url, body, token="secret", path="/generate"):
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.text()


def asked(*arguments, **options):
    return asyncio.run(post(*arguments, **options))


def test_a_turn_comes_through_whole_however_long(engine):
    status, text = asked(engine, {"ask": "count", "ids": list(range(500_000))})
    assert (status, json.loads(text)["asked"]) == (200, 500_000)


@pytest.mark.parametrize("token", [None, "wrong", "secre", "sécret"])
def test_without_the_token_nothing_comes_through(engine, token):
    status, _ = asked(engine, {"ask": "count"}, token=token)
    assert status == 401


def test_there_is_nothing_behind_it_but_turns(engine):
    assert asked(engine, {"ask": "count"}, path="/update_weights_from_disk")[0] == 404
    assert asked(engine, {"ask": "count"}, path="/generate/../update_weights_from_disk")[0] == 404


def test_what_the_engine_refuses_is_refused_in_its_words(engine):
    status, text = asked(engine, {"ask": "no"})
    assert (status, json.loads(text)["error"]["message"]) == (400, "too long")


def test_a_stream_comes_as_it_is_made_and_breaks_as_it_breaks(engine):
    assert asked(engine, {"ask": "stream"}) == (200, "data: 0\n\ndata: 1\n\ndata: 2\n\n")
    with pytest.raises(aiohttp.ClientError):
        asked(engine, {"ask": "stream", "break": True})


def test_who_hangs_up_takes_the_request_off_the_engine(engine):
    async def scenario():
        waiting = asyncio.create_task(post(engine, {"ask": "wait", "rid": "r7"}))
        await asyncio.sleep(0.3)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        deadline = time.monotonic() + 10
        while "r7" not in (await post(engine, {"ask": "count"}))[1]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_an_engine_that_does_not_answer_yet_is_said_to_be_away():
    port = free_port("127.0.0.1", ADDRESS)
    program = "from rose.runtime.engines import door; door.open_from_within(); print('up', flush=True); input()"
    environment = {**os.environ, **door.environment(Door(ADDRESS, "secret"), port)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == "up\n"
    assert asked(f"http://{ADDRESS}:{port}", {"ask": "count"})[0] == 502
    process.communicate("\n")


def test_a_port_that_is_anothers_ends_the_engine_with_the_words_that_have_it_moved(engine):
    port = int(engine.rpartition(":")[2])
    process = start(Door(ADDRESS, "secret"), port)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"the engine cannot be reached on {ADDRESS}:{port}: address already in use" in errors
