"""Three ways to the same engines: the router, the controller, and no server between."""

import asyncio
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks import parts
from benchmarks.parts import Client, http_post
from benchmarks.shared import CACHE
from rose.errors import UserError
from rose.runtime.engines.ports import free_port
from rose.runtime.models import models
from rose.terminal import echo

ROUTER = "sglang-router==0.3.2"
CAPACITY = 512  #: Turns at once on one engine, as far as the controller knows. The router knows no limit.
DIRECT, ROUTED, GENERATE, OWN = "direct", "router", "controller", "controller's own path"
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Side:
    """One way to an engine; `pid` is the gateway's process."""

    name: str
    port: int
    path: str
    pid: int

    def request(self, ids: Sequence[int], tokens: int, session: str = "") -> bytes:
        body: dict[str, Any] = {"input_ids": ids, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
        # The controller's own answers always have log probabilities.
        return http_post(self.path, body if self.name == OWN else body | {"return_logprob": True}, session)


def made_up(tokens: int) -> list[int]:
    return random.choices(range(3, 250), k=tokens)


def require_router(python: str) -> None:
    probe = subprocess.run([python, "-c", "import sglang_router"], capture_output=True, check=False)
    if probe.returncode:
        install = f"`python -m venv FOLDER && FOLDER/bin/pip install {ROUTER}`, then name `--router FOLDER/bin/python`"
        raise UserError(f"--router is {python}, which has no sglang_router: {install}")


def start_engines(stack: ExitStack, count: int, *settings: object) -> list[tuple[int, subprocess.Popen[bytes]]]:
    ports = [free_port() for _ in range(count)]
    return [(port, parts.start(stack, "engine", port, *settings)) for port in ports]


def start_sglang(stack: ExitStack, count: int, folder: Path) -> list[tuple[int, int]]:
    model = models.resolve(models.FROZENLAKE, CACHE, lambda text: echo(text, err=True))
    engines = []
    for number in range(count):
        engines.append(parts.sglang(folder / f"engine-{number}", model, 1 << 16, model_name=parts.MODEL))
        stack.callback(engines[-1].stop)
        engines[-1].launch()
    for engine in engines:
        engine.wait_ready()
    return [(engine.spec.port, cast(int, engine.pid)) for engine in engines]


@contextmanager
def opened(folder: Path, python: str, engines: Sequence[tuple[int, int]]) -> Iterator[list[Side]]:
    """Start the router and the controller before engines, each (port, process id)."""
    with ExitStack() as stack:
        routed, controlled = free_port(), free_port()
        command = [python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(routed)]
        command += ["--prometheus-port", str(free_port()), "--log-level", "error"]
        command += ["--worker-urls", *(f"http://127.0.0.1:{port}" for port, _ in engines)]
        # Its defaults: the policy is cache-aware.
        router = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(router.wait)
        stack.callback(router.kill)
        folder.mkdir()
        controller = parts.start(stack, "controller", controlled, folder)
        run_id = parts.open_run(controlled)
        parts.start(stack, "agents", controlled, run_id, CAPACITY, *(f"{port}:{pid}" for port, pid in engines))
        sides = [
            Side(DIRECT, *engines[0][:1], "/generate", engines[0][1]),
            Side(ROUTED, routed, "/generate", router.pid),
            Side(GENERATE, controlled, "/generate", controller.pid),
            Side(OWN, controlled, f"/runs/{run_id}/generate", controller.pid),
        ]
        for side in sides:
            uvloop.run(_ready(side))
        yield sides


async def _ready(side: Side) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            client = await Client.connect(side.port)
            if await client.ask(side.request([5, 6, 7], 4)) == 200:
                return
        await asyncio.sleep(0.1)
    raise UserError(f"the {side.name} did not answer within {_START_S:.0f} s")
