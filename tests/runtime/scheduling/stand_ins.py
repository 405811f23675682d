import asyncio
import json
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest
import uvicorn.server
from aiohttp import web

from rose.client.address import RunAddress
from rose.client.turns import TurnClient
from rose.http_calls import authorization
from rose.runtime.coserving.continuation import EARLIER
from rose.runtime.coserving.questions import TAKEN, parse_question
from rose.runtime.engines.ports import free_port
from rose.runtime.policy import sharing
from rose.runtime.scheduling import controller, devices
from rose.runtime.scheduling.engines import assignment, engine_calls
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.scheduling.gateway.paths import AGENT_PATHS
from rose.runtime.scheduling.messages import EngineReport, Heartbeat
from rose.runtime.scheduling.turns import turns


def left_of(body):
    """Return how many tokens an engine may make, which does not count those that it is told were made before."""
    sampling = body["sampling_params"]
    return sampling["max_new_tokens"] - sampling.get("custom_params", {}).get(EARLIER, 0)


class FakeEngine:
    def __init__(self, pause_s=0.0, version="default"):
        self.pause_s, self.version = pause_s, version
        self.requests, self.aborted, self.running = [], set(), set()
        self.abort = defaultdict(asyncio.Event)

    async def generate(self, request):
        body = await request.json()
        if question := parse_question(body["rid"]):
            self.aborted.add(question[1])
            self.abort[question[1]].set()
            return web.json_response({"meta_info": {"finish_reason": {"type": "abort", "message": TAKEN}}})
        self.requests.append(body)
        output, tokens = [], self.tokens(body)
        self.running.add(body["rid"])
        response = None
        try:
            while len(output) < len(tokens) and body["rid"] not in self.aborted:
                await self.pause(body["rid"], len(output))
                output.append(tokens[len(output)])
                if body.get("stream"):
                    response = response or await self.begin_stream(request)
                    await self.send(response, self.answer(output, None))
        finally:
            self.running.discard(body["rid"])
        answer = self.answer(output, {"type": "abort" if body["rid"] in self.aborted else "length"})
        if not body.get("stream"):
            return web.json_response(answer)
        response = response or await self.begin_stream(request)
        await self.send(response, answer)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def pause(self, rid, count):
        await asyncio.sleep(self.pause_s)

    def tokens(self, body):
        first = len(body["input_ids"])
        return list(range(first, first + left_of(body)))

    def answer(self, ids, finish_reason):
        return {
            "output_ids": ids,
            "meta_info": {
                "finish_reason": finish_reason,
                "cached_tokens": 1,
                "output_token_logprobs": [[-0.5, token, None] for token in ids],
                # As SGLang, which names the weights only at the end.
                "weight_versions": finish_reason and [{"version": self.version, "start": 0, "end": len(ids)}],
            },
        }

    async def begin_stream(self, request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response

    async def send(self, response, answer):
        await response.write(b"data: " + json.dumps(answer).encode() + b"\n\n")


@asynccontextmanager
async def serve(engine):
    app = web.Application()
    app.add_routes([web.post("/generate", engine.generate)])
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


AGENT_TOKEN = "agent-token-of-tests"
#: Shorter times of the gateways below, unless a test sets its own.
QUICK = {
    (controller, "TICK_S"): 0.02,
    (controller, "CALM_TICK_S"): 0.05,
    (devices, "HOLD_NS"): 100_000_000,
    (sharing, "HOLD_MIN_NS"): 200_000_000,
    (assignment, "PEAK_NS"): 100_000_000,
    (turns, "AVOID_NS"): 50_000_000,
    (turns, "BACKOFF_MAX_S"): 0.1,
    (engine_calls, "_REPEAT_S"): 0.05,
}
USUAL = {key: getattr(*key) for key in QUICK}
#: For a server that stops: Uvicorn's checks ten times a second whether its connections are closed.
QUICK_ASYNCIO = SimpleNamespace(**vars(asyncio) | {"sleep": lambda s: asyncio.sleep(min(s, 0.005))})
SERVERS = []


@asynccontextmanager
async def gateway(token=None, *, policy="rose", port=None, **options):
    port = port or free_port()
    server = Gateway("127.0.0.1", port, token, policy, agent_token=AGENT_TOKEN, **options)
    SERVERS[:] = [server]
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", QUICK_ASYNCIO)
        for (module, name), value in QUICK.items():
            if getattr(module, name) == USUAL[module, name]:
                patch.setattr(module, name, value)
        await server.start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
            try:
                yield session, f"http://127.0.0.1:{port}"
            finally:
                await server.stop()


def report(url, engine_id="e0", **changes):
    names = {"engine_id": engine_id, "device_id": f"device-of-{engine_id}", "url": url}
    state = {"borrowed": False, "alive": True, "capacity": 8, "policy_version": 0, "slack_ok": True}
    return EngineReport(**{**names, **state, "lease_id": None, "lease_left_ns": None, **changes})


VERDICT = {"kind": "verdict", "event_id": "v1", "trajectory_id": "t", "group_id": "g", "step": 3, "verifier": "exact"}
VERDICT |= {"reward": 1.0, "threshold": 0.5, "accepted": True}
STEP = {"kind": "step", "event_id": "s4", "step": 4, "reward_mean": 1.0} | dict.fromkeys(
    ("loss", "entropy", "kl", "grad_norm")
)
STEP |= dict.fromkeys(("groups", "trajectories", "trajectories_accepted", "tokens_trained"), 1)
STEP |= dict.fromkeys(("rollout_ns", "train_ns", "sync_ns", "total_ns"), 2)


async def beat(session, *reports, seen=0, hold_s=0.0, device_id="d", **fields):
    body = Heartbeat(device_id=device_id, engines=list(reports), seen=seen, hold_s=hold_s, **fields).model_dump_json()
    return (await call(session, "POST", "/heartbeat", body))[1]


async def until(condition, seconds=30.0):
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about in time")


async def call(session, method, path, body=None):
    data = body if isinstance(body, str | None) else json.dumps(body)
    headers = authorization(AGENT_TOKEN) if path in AGENT_PATHS else None
    async with session.request(method, path, data=data, headers=headers) as response:
        return response.status, await response.json()


async def reported(session):
    return [engine for device in (await call(session, "GET", "/status"))[1]["devices"] for engine in device["engines"]]


async def post(session, path, body):
    return await call(session, "POST", path, body)


async def open_run(session, name="grpo", **fields):
    status, opened = await post(session, "/runs", {"name": name, "model": "tiny", **fields})
    assert status == 200, opened
    return opened


async def publish(session, opened, version=0, url="http://store", **fields):
    body = {"fence": opened["fence"], "version": version, "url": url, **fields}
    return await post(session, f"/runs/{opened['run_id']}/versions", body)


class Play:
    def __init__(self, session, opened, version, client):
        self.session, self.opened, self.version, self._client = session, opened, version, client
        self.run_id, self.path = opened["run_id"], f"/runs/{opened['run_id']}/generate"

    def report(self, url="http://x", engine_id="e0", **changes):
        return report(url, engine_id, **{"run_id": self.run_id, "policy_version": self.version, **changes})

    def lent(self, url="http://x", lease_id="L1", left_s=1.0, **changes):
        return self.report(url, borrowed=True, lease_id=lease_id, lease_left_ns=int(left_s * 1e9), **changes)

    async def beat(self, *reports, **fields):
        return await beat(self.session, *reports, **fields)

    async def post(self, body):
        return await post(self.session, self.path, body)

    async def turn(self, tokens, input_ids=(1,), trajectory_id="t", *, turn=0, version_min=None, **sampling):
        sampling = {"max_new_tokens": tokens, **sampling}
        return await self._client.turn(
            input_ids, sampling, trajectory_id=trajectory_id, turn=turn, version_min=version_min
        )

    def stream(self, input_ids, sampling):
        return self._client.stream(input_ids, sampling, trajectory_id="t")

    def begin(self, *arguments, **fields):
        return asyncio.create_task(self.turn(*arguments, **fields))


@asynccontextmanager
async def play(version=0, *, port=None, run=None, **options):
    async with gateway(port=port, **options) as (session, url):
        opened = await open_run(session, **(run or {}))
        await publish(session, opened, version)
        async with TurnClient(RunAddress(url=url, run_id=opened["run_id"], fence=opened["fence"])) as client:
            yield Play(session, opened, version, client)


async def events(response):
    async for line in response.content:
        if line == b"data: [DONE]\n":
            return
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


class FakeAgent:
    """Reports one engine, brings it to its targets after `sync_s`, and starts models in `start_s`."""

    def __init__(self, session, engine, url, engine_id="e0", *, sync_s=0.0, start_s=0.0, **changes):
        self._session, self.engine, self._sync_s, self._start_s = session, engine, sync_s, start_s
        self.models = [changes.get("model")]
        self._fields = {"url": url, "engine_id": engine_id, **changes}
        self.reply, self.targets, self.seen = {}, [], 0

    async def beat(self, hold_s=0.0):
        self.reply = await beat(
            self._session, report(**self._fields), seen=self.seen, hold_s=hold_s, device_id=self.device_id
        )
        self.seen = self.reply["seq"]
        model = self.reply["models"].get(self._fields["engine_id"])
        if self.models[-1] is not None and model not in (None, self.models[-1]):
            await self.start(model)
            return
        target = self.reply["targets"].get(self._fields["engine_id"])
        if target is not None and (not self.targets or self.targets[-1] != target):
            self.targets.append(target)
            await asyncio.sleep(self._sync_s)
            self._fields |= {"run_id": target["run_id"], "policy_version": target["version"]}
            self.engine.version = f"{target['run_id']}/{target['version']}"

    async def start(self, model):
        assert not self.engine.running, "its turns leave it first"
        down = {"alive": False, "run_id": None, "policy_version": 0}
        await beat(self._session, report(**self._fields | down), device_id=self.device_id)
        await asyncio.sleep(self._start_s)
        self.models.append(model)
        self._fields |= {**down, "alive": True, "model": model, "start_ns": int(self._start_s * 1e9)}
        self.targets.append(None)

    @property
    def device_id(self):
        return f"device-of-{self._fields['engine_id']}"

    async def run(self):
        while True:
            await self.beat(0.5)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def fleet(session, count=1, *, pause_s=0.0, engine=FakeEngine, **options):
    async with AsyncExitStack() as stack:
        agents = []
        for number in range(count):
            made = engine(pause_s)
            url = await stack.enter_async_context(serve(made))
            agents.append(FakeAgent(session, made, url, f"e{number}", **options))
        beating = [asyncio.create_task(agent.run()) for agent in agents]
        try:
            yield agents
        finally:
            for task in beating:
                task.cancel()
            await asyncio.gather(*beating, return_exceptions=True)
