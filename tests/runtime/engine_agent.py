"""An agent whose engine is a small HTTP server: for tests of what goes on around engines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time

from aiohttp import web

from rose.runtime.rollout import vocabulary
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.scheduling.messages import EngineReport, Heartbeat

#: What the engine writes: no move, so that every trajectory has all its turns.
TOKENS = [vocabulary.NAMES.index(name) for name in vocabulary.NAMES[-2:]]


class EngineAgent:
    """As `AgentActor`, in a process that Ray runs."""

    def __init__(self, engine_id: str, port: int, gateway_url: str, pause_s: float) -> None:
        self._engine_id, self._port, self._pause_s = engine_id, port, pause_s
        self._control = ControlClient(gateway_url)
        self._version = 0
        self._misses = 0
        self._made = 0
        self._seen: set[str] = set()

    def start(self) -> None:
        started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True).start()
        started.wait()
        threading.Thread(target=self._beat, daemon=True).start()

    def miss(self, syncs: int) -> None:
        """Fail so many of the next syncs."""
        self._misses = syncs

    def sync(self, version: int, url: str, step: int | None) -> tuple[bool, int, int, str | None]:
        if self._misses:
            self._misses -= 1
            return False, 0, 0, "the engine did not answer"
        self._version = version
        return True, 1, 2, None

    def check(self) -> str | None:
        return None

    def pid(self) -> int:
        return os.getpid()

    def stop(self) -> None:
        pass

    def _beat(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                report = EngineReport(
                    engine_id=self._engine_id,
                    device_id=self._engine_id,
                    url=f"http://127.0.0.1:{self._port}",
                    borrowed=False,
                    alive=True,
                    capacity=16,
                    policy_version=self._version,
                    lease_id=None,
                    lease_left_ns=None,
                    slack_ok=True,
                )
                self._control.heartbeat(Heartbeat(device_id=self._engine_id, engines=[report]))
            time.sleep(0.1)

    async def _serve(self, started: threading.Event) -> None:
        app = web.Application()
        app.add_routes([web.post("/generate", self._generate)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        started.set()
        await asyncio.Event().wait()

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(self._pause_s)
        made = TOKENS[: body["sampling_params"]["max_new_tokens"]]
        meta = {
            "finish_reason": {"type": "stop"},
            "cached_tokens": 0,
            "output_token_logprobs": [[-0.5, token, None] for token in made],
            "weight_versions": [{"version": str(self._version), "start": 0, "end": len(made)}],
        }
        return web.json_response({"output_ids": made, "meta_info": meta})
