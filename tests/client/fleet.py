import asyncio
import threading
import time
from contextlib import contextmanager, suppress

import torch
from aiohttp import web

from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.scheduling.messages import Heartbeat
from rose.transfer.apply.apply import prepare
from rose.transfer.codec.bits import integers, torch_dtype
from rose.transfer.errors import TransferError
from rose.transfer.wire.receiver import Receiver
from tests.runtime.scheduling.stand_ins import AGENT_TOKEN, FakeEngine, left_of, report

MODEL = "frozenlake-tiny"


class Engine(FakeEngine):
    """An agent with one engine, which takes each target at once and generates what `tokens()` returns.

    `fetch(target)` is called for each version.
    """

    def __init__(self, engine_id="e0", *, pause_s=0.0, fetch=None, tokens=None):
        super().__init__(pause_s)
        self.engine_id, self.fetch, self._tokens = engine_id, fetch, tokens
        self.run_id, self.policy_version, self.held = None, 0, []
        #: Why its last sync failed, as its agent would report.
        self.failed = None
        self.port = free_port()

    def report(self):
        held = {"run_id": self.run_id, "policy_version": self.policy_version}
        return report(f"http://127.0.0.1:{self.port}", self.engine_id, capacity=64, failed=self.failed, **held)

    def beat(self, control):
        with suppress(OSError, TransferError):
            reply = control.heartbeat(Heartbeat(device_id=f"device-of-{self.engine_id}", engines=[self.report()]))
            target = reply.targets.get(self.engine_id)
            if target is not None and (target.run_id, target.version) != (self.run_id, self.policy_version):
                if self.failed is not None:
                    return
                if self.fetch is not None:
                    self.fetch(target)
                self.run_id, self.policy_version = target.run_id, target.version
                self.version = f"{target.run_id}/{target.version}"
                self.held.append((target.run_id, target.version))

    def tokens(self, body):
        if self._tokens is None:
            return super().tokens(body)
        return self._tokens()[: left_of(body)]


class Fetching:
    def __init__(self, folder):
        self.folder, self.held = folder, {}
        self.fetched = []

    def __call__(self, target):
        # The same version again is fetched whole, or it counts as drifted.
        have = self.held.get(target.run_id)
        staged = Receiver(
            target.url, target.token, self.folder / target.run_id, run_id=target.run_id, signer=target.signer
        ).fetch(target.version, have if have != target.version else None)
        self.held[target.run_id] = target.version
        self.fetched.append((target.run_id, target.version, {m.run_id for m in staged.manifests}))
        self.keep(staged)

    def keep(self, staged):
        """A test may look at the staged files here."""


class Holding(Fetching):
    def __init__(self, folder):
        super().__init__(folder)
        self.weights, self._engine = {}, {}

    def keep(self, staged):
        for info in staged.manifests[-1].tensors:
            self._engine.setdefault(info.name, torch.zeros(info.shape, dtype=torch_dtype(info.dtype)))
        prepare(staged, self._engine).commit()
        self.weights[staged.version] = {name: tensor.clone() for name, tensor in self._engine.items()}


def same_bits(held, expected):
    return held.keys() == expected.keys() and all(
        held[name].dtype == tensor.dtype and torch.equal(integers(held[name]), integers(tensor))
        for name, tensor in expected.items()
    )


class Recorded:
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
    """`stop` and `start` act on the controller alone; its state is in `folder`."""

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
            kept = {"state": self.folder, "writer": self.writer, "fleet_run_id": "fleet"}
            self.gateway = Gateway(
                "127.0.0.1", self.port, self.token, models=[self.model], agent_token=AGENT_TOKEN, **kept
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
    with Fleet(folder, list(engines) or [Engine()], **more) as controller:
        yield controller
