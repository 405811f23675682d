"""The trainer's side of environments in other processes. The other side is `environment_server.py`."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from rose.config import TaskConfig
from rose.errors import UserError
from rose.event_fields import AMOUNT_MAX
from rose.private_files import TemporaryFolder
from rose.runtime.rollout.environments import environment_server
from rose.runtime.rollout.environments.protocol import Environment, Observation, Traits

logger = logging.getLogger(__name__)

_GRACE_S = 5.0  #: The child's own watchdog knows the cause, and must be first.

Step = tuple[Observation | None, float, bool, Mapping[str, Any]]


class EnvironmentFailedError(Exception):
    """The environment of one trajectory hung, died, sent too much, or raised an error."""


class EnvironmentStartError(UserError):
    """The environment of `[task]` cannot be loaded."""


class Playable(Protocol):
    """The environment of one trajectory. Methods raise EnvironmentFailedError."""

    async def reset(self, seed: int) -> Observation: ...
    async def step(self, answer: Any) -> Step: ...
    async def recheck(self) -> bool: ...


class Here:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def reset(self, seed: int) -> Observation:
        return self._environment.reset(seed)

    async def step(self, answer: Any) -> Step:
        return self._environment.step(answer)

    async def recheck(self) -> bool:
        raise NotImplementedError


class EnvironmentWorkers:
    """A server that forks a child for each trajectory, until `close`. Raises EnvironmentStartError."""

    def __init__(self, task: TaskConfig) -> None:
        self.task = task
        self._starting = asyncio.Lock()
        self._folder = TemporaryFolder("rose-environments-")
        try:
            self._start()
        except BaseException:
            self._folder.close()
            raise

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()
        self._folder.close()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Playable]:
        child = _Child(self)
        try:
            yield child
        finally:
            child.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection for a trajectory. A dead server is replaced first. Raises EnvironmentFailedError."""
        async with self._starting:
            if self._server.poll() is not None:
                logger.warning("the process of %s died: starting another one", self.task.environment)
                await asyncio.to_thread(self._start)
        try:
            return await asyncio.open_unix_connection(self._socket, limit=self.task.observation_bytes_max)
        except OSError as error:
            raise EnvironmentFailedError(f"{self.task.environment} could not be reached: {error}") from None

    def _start(self) -> None:
        task = self.task
        self._socket = self._folder.path / f"{time.monotonic_ns()}"
        settings = task.model_dump(include={"environment", "options", "memory_mb_max", "call_s_max"})
        program = [environment_server.__file__, str(self._socket), json.dumps(settings)]
        command = [task.python or sys.executable, "-P", *program]
        try:
            self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            raise EnvironmentStartError(f"task.python {task.python!r} cannot be run: {error.strerror}") from None
        assert self._server.stdout is not None
        with self._server.stdout as output:
            answer = json.loads(output.read() or b'{"error": "its process died"}')
        if "error" in answer:
            self._server.wait()
            context = "" if answer.get("user") else f"task.environment {task.environment!r} cannot be loaded: "
            raise EnvironmentStartError(context + answer["error"])
        self.traits = Traits(**answer)


class _Child:
    def __init__(self, workers: EnvironmentWorkers) -> None:
        self._workers, self._task = workers, workers.task
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def reset(self, seed: int) -> Observation:
        self._reader, self._writer = await self._workers.connect()
        observation: Observation = (await self._call("reset", seed))["observation"]
        return observation

    async def step(self, answer: Any) -> Step:
        values = await self._call("step", answer)
        info = values["info"]
        faults = [] if math.isfinite(values["reward"]) else [f"reward {values['reward']} is not a finite number"]
        for name in ("tool_calls", "answer_tokens"):
            if not isinstance(count := info.get(name, 0), int) or not 0 <= count <= AMOUNT_MAX:
                faults.append(f"info has {name} {count!r}, which is not a count")
        if not isinstance(correct := info.get("correct"), bool | None):
            faults.append(f"info has correct {correct!r}, which is neither true nor false")
        if faults:
            raise EnvironmentFailedError(f"{self._task.environment}: {', '.join(faults)}")
        return values["observation"], values["reward"], values["done"], info

    async def recheck(self) -> bool:
        return bool((await self._call("recheck", None))["correct"])

    async def _call(self, method: str, argument: Any) -> dict[str, Any]:
        limit_s, began_s = self._task.call_s_max, time.monotonic()
        call = f"{self._task.environment}.{method}"
        assert self._writer is not None, "`reset` comes first"
        try:
            self._writer.write(json.dumps({"method": method, "argument": argument}).encode() + b"\n")
            async with asyncio.timeout(limit_s + _GRACE_S):
                line = await self._reader.readline()
        except ValueError:
            raise EnvironmentFailedError(f"{call} sent more than {self._task.observation_bytes_max} bytes") from None
        except (OSError, TimeoutError):
            line = b""
        if not line.endswith(b"\n"):
            late = time.monotonic() - began_s >= limit_s
            raise EnvironmentFailedError(f"{call} took longer than {limit_s} s" if late else f"{call} died")
        values: dict[str, Any] = json.loads(line)
        if "error" in values:
            raise EnvironmentFailedError(f"{call} failed: {values['error']}")
        return values
