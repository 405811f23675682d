"""Stand-in engines, the controller and its agents as processes of `python -m benchmarks.parts PART`, and a client."""

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, cast

import aiohttp
import httptools
import psutil
import uvloop

from rose.accept.report import ROOT
from rose.client.control import call
from rose.http_calls import authorization
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineProcess, EngineSpec
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.scheduling.messages import EngineReport, Heartbeat

MODEL = "stand-in"
_AGENT_TOKEN = "agent-token-of-the-benchmark"


class StandIn(asyncio.Protocol):
    """A connection to a stand-in engine, without a server's usual work."""

    def __init__(self, answer: bytes, turn_s: float) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._answer, self._turn_s = head % len(answer) + answer, turn_s
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # A router tries gRPC too.
            self._transport.close()

    def on_message_complete(self) -> None:
        asyncio.get_running_loop().call_later(self._turn_s, self._transport.write, self._answer)


class Client(asyncio.Protocol):
    """A kept connection with one request at a time; a client library would be slower."""

    @classmethod
    async def connect(cls, port: int) -> Self:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_result(0)

    async def ask(self, request: bytes) -> int:
        """Return the status, 0 if the connection broke; `body` has the answer."""
        self._parser, self.body = httptools.HttpResponseParser(self), b""
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return int(await self._answered)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self._answered.set_result(self._parser.get_status_code())


def http_post(path: str, body: dict[str, Any], session: str = "") -> bytes:
    text, named = json.dumps(body).encode(), f"x-session-id: {session}\r\n" if session else ""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{named}"
    return f"{head}content-length: {len(text)}\r\n\r\n".encode() + text


async def engine(port: int, tokens: int, turn_s: float) -> None:
    token_ids = [number % 250 for number in range(tokens)]
    meta_info = {
        "id": "0" * 32,
        "finish_reason": {"type": "length", "length": tokens},
        "prompt_tokens": 1,
        "completion_tokens": tokens,
        "cached_tokens": 0,
        "output_token_logprobs": [[-random.random(), number, None] for number in token_ids],
        "weight_versions": [{"version": "0", "start": 0, "end": tokens}],
    }
    # A router asks for the model's names, in the same answer.
    names = dict.fromkeys(("model_path", "served_model_name"), MODEL)
    answer = json.dumps({"text": "", "output_ids": token_ids, "meta_info": meta_info, **names}).encode()
    await asyncio.get_running_loop().create_server(lambda: StandIn(answer, turn_s), "127.0.0.1", port, backlog=4096)
    await _stay_ready()


async def controller(port: int, folder: str) -> None:
    writer = LedgerWriter.open(Path(folder) / "ledger", "controller", "fleet")
    state = Path(folder) / "state"
    server = Gateway(
        "127.0.0.1", port, agent_token=_AGENT_TOKEN, models=[MODEL], state=state, writer=writer, fleet_run_id="fleet"
    )
    await server.start()
    gc.freeze()  # The garbage collector has the service's settings.
    gc.set_threshold(20_000, 50, 100)
    await _stay_ready()


async def agents(port: int, run_id: str, capacity: int, *engines: str) -> None:
    """Report engines, each `PORT:PID`, that take `capacity` turns at once."""

    async def beat(session: aiohttp.ClientSession, number: int, engine_port: str, pid: int) -> None:
        seen = 0
        while True:
            report = EngineReport(
                engine_id=f"e{number}",
                device_id=f"d{number}",
                url=f"http://127.0.0.1:{engine_port}",
                borrowed=True,
                alive=psutil.pid_exists(pid),
                capacity=capacity,
                policy_version=0,
                lease_id=f"lease-{number}",
                lease_left_ns=10**10,
                slack_ok=True,
                run_id=run_id,
            )
            heartbeat = Heartbeat(device_id=report.device_id, engines=[report], seen=seen, hold_s=0.5)
            async with session.post("/heartbeat", data=heartbeat.model_dump_json()) as response:
                seen = (await response.json())["seq"]
            await asyncio.sleep(0.01)

    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=authorization(_AGENT_TOKEN)) as session:
        places = [one.split(":") for one in engines]
        beats = (beat(session, number, place, int(pid)) for number, (place, pid) in enumerate(places))
        await asyncio.gather(_stay_ready(), *beats)


async def _stay_ready() -> None:
    print("ready", flush=True)
    await asyncio.Event().wait()


def start(stack: ExitStack, part: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.parts", part, *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"{part} did not start")
    return process


def sglang(folder: Path, model: Path, tokens: int, **options: Any) -> EngineProcess:
    """Return an ungated engine on this host's cores, not started, with its page and staging in `folder`."""
    staging = folder / "staging"
    staging.mkdir(parents=True)
    spec = EngineSpec(
        engine_id=folder.name,
        model=str(model),
        port=free_port(),
        max_total_tokens=tokens,
        plugin=PluginSettings("rollout", ArbiterPage.create(folder / "page").path, staging, gated=False),
        log=folder / "log",
        cores=sorted(os.sched_getaffinity(0)),
        token_ids_only=True,
        **options,
    )
    return EngineProcess(spec)


def open_run(port: int) -> str:
    """Open a run with a version at the controller, for requests that name no run."""
    body = {"name": "benchmark", "model": MODEL, "expires_s": 600, "tags": {"token": "anyone"}}
    url = f"http://127.0.0.1:{port}"
    opened = call(url, "POST", "/runs", body)
    version = {"fence": opened["fence"], "version": 0, "url": "http://store"}
    call(url, "POST", f"/runs/{opened['run_id']}/versions", version)
    return str(opened["run_id"])


def cpu_s(pid: int) -> float:
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def main() -> None:
    part, *arguments = sys.argv[1:]
    works = {
        "engine": lambda: engine(int(arguments[0]), int(arguments[1]), float(arguments[2])),
        "controller": lambda: controller(int(arguments[0]), arguments[1]),
        "agents": lambda: agents(int(arguments[0]), arguments[1], int(arguments[2]), *arguments[3:]),
    }
    uvloop.run(works[part]())  # As Ray runs the controller.


if __name__ == "__main__":
    main()
