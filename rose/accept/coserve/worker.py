"""`python -m rose.accept.coserve.worker serving|rollout`: a load generator in a process of its own.

Nothing that the benchmark's own process does delays the arrival of a token here. Commands and answers are lines of
JSON; the process ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from rose.accept.report import ROOT
from rose.clock import monotonic_ns
from rose.terminal import echo_data

#: Prompts of rollouts: a prefix that all share, as the turns of a group do, and tokens of their own.
SHARED_TOKENS, OWN_TOKENS = 24, 16
NEW_TOKENS = (32, 64)
#: Posts carry this many turns, which spares the host's core; too few to make turns wait for one another for long.
TURNS_PER_POST = 4
_TOKEN_IDS = (16, 256)
_ABORT_S = 30.0


class Worker:
    """A worker process. Use it as a context manager, or `close` it."""

    def __init__(self, what: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rose.accept.coserve.worker", what],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.pid = self._process.pid
        self.hear()

    def tell(self, **command: object) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Return the next answer. Raises RuntimeError if the process has ended; its stderr says why."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a load generator ended; its errors above say why")
        return json.loads(line)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    """Carry out commands until there are no more."""
    act = {"serving": _serving, "rollout": _rollout}[sys.argv[1]]
    _answer({"ready": True})
    while line := sys.stdin.readline():
        asyncio.run(act(json.loads(line)))


def _answer(answer: object) -> None:
    echo_data(json.dumps(answer))


async def _serving(command: dict[str, Any]) -> None:
    """Replay arrivals; answer at the begin, and then with every request as its client saw it."""
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
    _answer({"began_ns": monotonic_ns()})
    await replay.run()
    _answer({"requests": [asdict(request) for request in requests]})


async def _rollout(command: dict[str, Any]) -> None:
    """Keep turns in flight until the next command, then abort them; answer with the tokens that were made."""
    import aiohttp

    draw = random.Random(command["seed"])
    shared = _token_ids(draw, SHARED_TOKENS)
    stopping = asyncio.Event()
    counts: dict[str, Any] = {"tokens": 0, "turns": 0, "failed": 0, "reason": ""}

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
            # Turns that the end of the round cuts off may be answered without their tokens.
            tokens = sum(answer.get("meta_info", {}).get("completion_tokens", 0) for answer in answers)
            counts["tokens"] += tokens
            if not tokens:  # Nothing is lent.
                await asyncio.sleep(0.02)

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        tasks = [asyncio.create_task(post(session, turns)) for turns in posts(command["turns"])]
        await asyncio.to_thread(sys.stdin.readline)
        stopping.set()
        await session.post(f"{command['url']}/abort_request", json={"rid": "", "abort_all": True})
        _, late = await asyncio.wait(tasks, timeout=_ABORT_S)
        for task in late:
            task.cancel()
        counts["not_aborted"] = len(late)
    _answer(counts)


def posts(turns: int) -> list[int]:
    """Return how many turns each post carries, so that together they keep `turns` in flight."""
    whole, rest = divmod(turns, TURNS_PER_POST)
    return [TURNS_PER_POST] * whole + [rest] * (rest > 0)


def _token_ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(*_TOKEN_IDS) for _ in range(count)]


if __name__ == "__main__":
    main()
