"""Load generators in their own processes, so that the caller's own work delays no token."""

import asyncio
import random
from multiprocessing.connection import Connection
from typing import Any, Literal

from rose.accept.peer import Peer
from rose.clock import monotonic_ns

SHARED_TOKENS, OWN_TOKENS = 24, 16  # Prompt tokens of rollouts: a prefix shared as in a group, and own tokens.
NEW_TOKENS = (32, 64)
TURNS_PER_POST = 4  # Turns a post: enough to spare the host's core, too few to delay one another.
_TOKEN_IDS = (16, 256)
_ABORT_S = 30.0


class Worker(Peer):
    def __init__(self, what: Literal["serving", "rollout"]) -> None:
        super().__init__(f"load for {what}", _Load)
        self._what = what
        super().tell("ready")
        self.hear()  # After its answer, commands run at once.

    def tell(self, *_: object, **command: object) -> None:
        super().tell(self._what, command)


class _Load:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ready(self) -> bool:
        return True

    def serving(self, command: dict[str, Any]) -> object:
        return asyncio.run(_serving(command, self._connection))

    def rollout(self, command: dict[str, Any]) -> object:
        return asyncio.run(_rollout(command, self._connection))


async def _serving(command: dict[str, Any], connection: Connection) -> object:
    import numpy as np

    from rose.config import ServingConfig
    from rose.events import Event
    from rose.runtime.traffic.replay import Replay, Target
    from rose.runtime.traffic.trace import FittedTrace, Trace

    arrival, prompt, output = (
        np.array(command[name], np.int64) for name in ("arrival_ns", "prompt_tokens", "output_tokens")
    )
    fitted = FittedTrace(Trace(command["name"], arrival, prompt, output), 1.0, 1.0, 1.0, 1.0, int(arrival[-1]) + 1)
    requests: list[Event] = []
    target = Target(url=command["url"], model=command["model"])
    replay = Replay(fitted, target, ServingConfig(), requests.append, seed=command["seed"])
    connection.send(({"began_ns": monotonic_ns()}, None))
    await replay.run()
    return {"requests": requests}


async def _rollout(command: dict[str, Any], connection: Connection) -> object:
    import aiohttp

    draw = random.Random(command["seed"])
    shared = _token_ids(draw, SHARED_TOKENS)
    stopping = asyncio.Event()
    counts: dict[str, Any] = {"turns": 0, "failed": 0, "reason": ""}

    async def post(session: aiohttp.ClientSession, turns: int) -> None:
        while not stopping.is_set():
            body = {
                "input_ids": [shared + _token_ids(draw, OWN_TOKENS) for _ in range(turns)],
                "sampling_params": [
                    {"max_new_tokens": draw.randint(*NEW_TOKENS), "ignore_eos": True, "temperature": 1.0}
                    for _ in range(turns)
                ],
            }
            try:
                async with session.post(f"{command['url']}/generate", json=body) as response:
                    answers = await response.json()
                if response.status != 200:
                    raise ValueError(f"HTTP {response.status}: {answers}")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                counts["failed"] += turns
                counts["reason"] = f"{type(error).__name__}: {error}"
                await asyncio.sleep(0.2)
                continue
            counts["turns"] += turns
            if not any(answer.get("output_ids") for answer in answers):  # Nothing is lent.
                await asyncio.sleep(0.02)

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        turns = command["turns"]
        posts = [min(TURNS_PER_POST, turns - first) for first in range(0, turns, TURNS_PER_POST)]
        tasks = [asyncio.create_task(post(session, size)) for size in posts]
        await asyncio.to_thread(connection.recv)
        stopping.set()
        await session.post(f"{command['url']}/abort_request", json={"rid": "", "abort_all": True})
        _, late = await asyncio.wait(tasks, timeout=_ABORT_S)
        for task in late:
            task.cancel()
    return counts


def _token_ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(*_TOKEN_IDS) for _ in range(count)]
