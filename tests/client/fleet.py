"""A fleet for clients: the real gateway in this process, and engines that are small HTTP servers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager, suppress

from aiohttp import web

from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.scheduling.messages import EngineReport, Heartbeat
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.wire.receiver import Receiver

MODEL = "frozenlake-tiny"
AGENT_TOKEN = "agent-token-of-tests"


class Engine:
    """An agent with one engine: it holds what the controller's target says, as soon as it says so, and generates the
    numbers from the length of its prompt on or what `tokens()` gives, `pause_s` for each. `fetch(target)` is called for
    each version."""

    def __init__(self, engine_id="e0", *, pause_s=0.0, fetch=None, tokens=None):
        self.engine_id, self.pause_s, self.fetch, self.tokens = engine_id, pause_s, fetch, tokens
        self.run_id, self.version, self.held = None, 0, []
        self.requests = []
        #: Why it is not at its target, as its agent would say.
        self.failed = None
        self.port = free_port()

    def report(self):
        return EngineReport(
            engine_id=self.engine_id,
            device_id=f"device-of-{self.engine_id}",
            url=f"http://127.0.0.1:{self.port}",
            borrowed=False,
            alive=True,
            capacity=64,
            policy_version=self.version,
            lease_id=None,
            lease_left_ns=None,
            slack_ok=True,
            run_id=self.run_id,
            failed=self.failed,
        )

    def beat(self, control):
        # A controller that is away is asked again, and so is a trainer that is.
        with suppress(OSError, TransferError):
            reply = control.heartbeat(Heartbeat(device_id=f"device-of-{self.engine_id}", engines=[self.report()]))
            target = reply.targets.get(self.engine_id)
            if target is not None and (target.run_id, target.version) != (self.run_id, self.version):
                if self.failed is not None:
                    return
                if self.fetch is not None:
                    self.fetch(target)
                self.run_id, self.version = target.run_id, target.version
                self.held.append((target.run_id, target.version))

    async def generate(self, request):
        body = await request.json()
        self.requests.append(body)
        wanted, first = body["sampling_params"]["max_new_tokens"], len(body["input_ids"])
        made = list(range(first, first + wanted)) if self.tokens is None else self.tokens()[:wanted]
        if body.get("stream"):
            return await self.stream(request, made)
        await asyncio.sleep(self.pause_s * len(made))
        return web.json_response(self.answer(made, {"type": "length"}))

    async def stream(self, request, made):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for count in range(1, len(made) + 1):
            await asyncio.sleep(self.pause_s)
            answer = self.answer(made[:count], {"type": "length"} if count == len(made) else None)
            await response.write(b"data: " + json.dumps(answer).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def answer(self, made, finish_reason):
        meta = {
            "finish_reason": finish_reason,
            "cached_tokens": 0,
            "output_token_logprobs": [[-0.5, token, None] for token in made],
            # As SGLang: of what is not finished it does not say.
            "weight_versions": finish_reason
            and [{"version": f"{self.run_id}/{self.version}", "start": 0, "end": len(made)}],
        }
        return {"output_ids": made, "meta_info": meta}


class Fetching:
    """For an engine's `fetch`: stages what a target names as an agent does, from what it holds of that run."""

    def __init__(self, folder):
        self.folder, self.held = folder, {}
        self.fetched = []

    def __call__(self, target):
        # The same weights under a version that was held before, or it is refused as having drifted.
        have = self.held.get(target.run_id)
        staged = Receiver(target.url, target.token, self.folder / target.run_id).fetch(
            target.version, have if have != target.version else None
        )
        self.held[target.run_id] = target.version
        self.fetched.append((target.run_id, target.version, {m.run_id for m in staged.manifests}))


class Recorded:
    """As a ledger's writer."""

    failure = None

    def __init__(self):
        self.events = []

    def record(self, event, *, durable=None):
        self.record_all([event])

    def record_all(self, events):
        self.events += events

    def of(self, kind):
        return [event for event in self.events if event.kind == kind]


class Fleet:
    """`stop` and `start` are those of the controller alone; what it keeps is in `folder`."""

    def __init__(self, folder, engines, writer=None, token=None, port=None, model=MODEL):
        self.folder, self.engines, self.writer, self.token, self.model = folder, engines, writer, token, model
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.gateway = None
        self._loop = asyncio.new_event_loop()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._loop.run_forever), threading.Thread(target=self._beat)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        for engine in self.engines:
            self.call(self._serve(engine))
        self.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self.stop()
        self._threads[1].join()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()

    def call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def start(self):
        async def start():
            self.gateway = Gateway(
                "127.0.0.1",
                self.port,
                self.token,
                model=self.model,
                state=self.folder,
                writer=self.writer,
                fleet_run_id="fleet",
                agent_token=AGENT_TOKEN,
            )
            await self.gateway.start()

        self.call(start())

    def stop(self):
        if self.gateway is not None:
            gateway, self.gateway = self.gateway, None
            self.call(gateway.stop())

    async def _serve(self, engine):
        app = web.Application()
        app.add_routes([web.post("/generate", engine.generate)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", engine.port).start()

    def _beat(self):
        control = ControlClient(self.url, AGENT_TOKEN)
        while not self._ended.is_set():
            for engine in self.engines:
                engine.beat(control)
            time.sleep(0.02)


@contextmanager
def fleet(folder, *engines, **more):
    folder.mkdir(parents=True, exist_ok=True)
    with Fleet(folder, list(engines) or [Engine()], **more) as made:
        yield made
