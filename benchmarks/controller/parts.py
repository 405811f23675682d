"""The processes of the controller's benchmark: stand-in engines, the controller, a bare proxy, and clients.

`python -m benchmarks.controller.parts PART ARGUMENTS` runs one; it prints a line once it is ready, or done.
"""

import asyncio
import gc
import json
import random
import sys
import time
from pathlib import Path

import aiohttp
import uvloop
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rose.client.address import authorization
from rose.ledger.writer import LedgerWriter
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.scheduling.gateway.http_server import HttpServer
from rose.runtime.scheduling.messages import EngineReport, Heartbeat

ENGINES = 4
CAPACITY = 64  #: Turns at once on one engine.
_TURN_S = 0.2
_MODEL = "stand-in"
_AGENT_TOKEN = "agent-token-of-the-benchmark"


async def engines(port: int, tokens: int) -> None:
    """Answer every turn after _TURN_S with `tokens` tokens, as SGLang does."""
    meta_info = {
        "id": "0" * 32,
        "finish_reason": {"type": "length", "length": tokens},
        "prompt_tokens": 1,
        "completion_tokens": tokens,
        "cached_tokens": 0,
        "output_token_logprobs": [[-random.random(), number + 1000, None] for number in range(tokens)],
        "weight_versions": [{"version": "0", "start": 0, "end": tokens}],
    }
    answer = {"text": "", "output_ids": [number + 1000 for number in range(tokens)], "meta_info": meta_info}
    body = json.dumps(answer).encode()

    async def generate(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await asyncio.sleep(_TURN_S)
        await Response(body, media_type="application/json")(scope, receive, send)

    await HttpServer(generate, "127.0.0.1", port).start()
    await _stay_ready()


async def bare(port: int, engine_port: int) -> None:
    """Forward turns with the controller's libraries: no choice, no record, no parsing."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
    url = f"http://127.0.0.1:{engine_port}/generate"

    async def forward(scope: Scope, receive: Receive, send: Send) -> None:
        async with session.post(url, data=await Request(scope, receive).body()) as response:
            body = await response.read()
        await Response(body, media_type="application/json")(scope, receive, send)

    await HttpServer(forward, "127.0.0.1", port).start()
    await _stay_ready()


async def controller(port: int, folder: str) -> None:
    """Run the real controller, with its state and a ledger on disk."""
    writer = LedgerWriter.open(Path(folder) / "ledger", "controller", "fleet")
    state = Path(folder) / "state"
    server = Gateway(
        "127.0.0.1", port, agent_token=_AGENT_TOKEN, model=_MODEL, state=state, writer=writer, fleet_run_id="fleet"
    )
    await server.start()
    gc.freeze()  # The garbage collector has the service's settings.
    gc.set_threshold(20_000, 50, 100)
    await _stay_ready()


async def agents(port: int, engine_port: int, run_id: str) -> None:
    async def beat(session: aiohttp.ClientSession, number: int) -> None:
        seen = 0
        report = EngineReport(
            engine_id=f"e{number}",
            device_id=f"d{number}",
            url=f"http://127.0.0.1:{engine_port}",
            borrowed=True,
            alive=True,
            capacity=CAPACITY,
            policy_version=0,
            lease_id=f"lease-{number}",
            lease_left_ns=10**10,
            slack_ok=True,
            run_id=run_id,
        )
        while True:
            heartbeat = Heartbeat(device_id=report.device_id, engines=[report], seen=seen, hold_s=0.5)
            async with session.post("/heartbeat", data=heartbeat.model_dump_json()) as response:
                seen = (await response.json())["seq"]
            await asyncio.sleep(0.01)

    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=authorization(_AGENT_TOKEN)) as session:
        await asyncio.gather(_stay_ready(), *(beat(session, number) for number in range(ENGINES)))


async def clients(port: int, path: str, arrivals: list[float], prompt: int) -> None:
    """Send a turn at each of these seconds, without waiting for earlier turns; print the figures."""
    ids = [random.randrange(30_000) for _ in range(prompt)]
    done = failed = 0

    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(number: int) -> None:
            nonlocal done, failed
            key = f"k{number}-{time.time_ns()}"
            turn = {"trajectory_id": f"t{number % 500}", "group_id": "g", "step": 1, "key": key}
            body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 4096}, "rose": turn}
            async with session.post(path, json=body) as response:
                answer = await response.read()
            done += response.status == 200
            failed += response.status != 200
            if response.status != 200:
                print(answer[:300], file=sys.stderr)

        began = time.perf_counter()
        running = []
        for number, after_s in enumerate(arrivals):
            await asyncio.sleep(max(0.0, began + after_s - time.perf_counter()))
            running.append(asyncio.create_task(one(number)))
        await asyncio.gather(*running)
    print(json.dumps({"turns": done, "failed": failed}))


async def _stay_ready() -> None:
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    part, *given = sys.argv[1:]
    works = {
        "engines": lambda: engines(int(given[0]), int(given[1])),
        "bare": lambda: bare(int(given[0]), int(given[1])),
        "controller": lambda: controller(int(given[0]), given[1]),
        "agents": lambda: agents(int(given[0]), int(given[1]), given[2]),
        "clients": lambda: clients(int(given[0]), given[1], json.load(sys.stdin), int(given[2])),
    }
    uvloop.run(works[part]())  # As Ray runs the controller.
