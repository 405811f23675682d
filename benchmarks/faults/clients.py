"""The clients of the deployment: users of serving with a budget each, and rollouts that want more than there is."""

from __future__ import annotations

import asyncio
import random
import threading
import urllib.request
from dataclasses import dataclass

import aiohttp

from rose.clock import monotonic_ns
from rose.config import ServingConfig, TrafficConfig
from rose.events import Event, Request
from rose.runtime.engines import models
from rose.runtime.rollout import vocabulary
from rose.runtime.traffic.replay import Replay, Target
from rose.runtime.traffic.trace import fit, open_trace

_HEALTH_S = 1.0
_HEALTH_TIMEOUT_S = 5.0
_TURN_TOKENS = 32
_PROMPT_TOKENS = 48
#: Between two tries of a turn that was refused: the gateway is away, or being started.
_PAUSE_S = 0.3
#: Requests in flight at the end may take so long.
_DRAIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """A serving request as its user saw it. Monotonic nanoseconds."""

    sent_ns: int
    ended_ns: int
    failed: bool
    #: Whether it missed a budget; a request that failed missed both.
    late: bool
    ttft_ns: int | None
    reason: str | None


class Clients:
    """Users and rollouts in a thread of their own, from `start` to `stop`."""

    def __init__(self, serving_url: str, gateway_url: str, turns: int, budgets: ServingConfig, seed: int) -> None:
        self._serving_url, self._gateway_url, self._turns, self._seed = serving_url, gateway_url, turns, seed
        self._budgets = budgets
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="clients", daemon=True)
        self._health_thread = threading.Thread(target=self._ask_health, name="health", daemon=True)
        self.served: list[Served] = []
        self.turns_done = 0
        self.turns_refused = 0
        #: When `/health` of serving was asked, and whether it answered 200.
        self.health: list[tuple[int, bool]] = []

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()
        self._health_thread.start()

    def stop(self) -> None:
        """Send no more, and wait for what serving still owes. Safe to call twice."""
        self._stopping.set()
        for thread in (self._thread, self._health_thread):
            if thread.is_alive():
                thread.join()

    async def _run(self) -> None:
        config = TrafficConfig(seed=self._seed)
        trace = open_trace(config)
        assert trace is not None, "the sample trace is there"
        target = Target(url=self._serving_url, model=models.SMOLLM2)
        replay = Replay(fit(trace, config), target, self._budgets, self._note, seed=self._seed, repeat=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            turns = [asyncio.create_task(self._roll_out(session, number)) for number in range(self._turns)]
            users = asyncio.create_task(replay.run())
            await asyncio.to_thread(self._stopping.wait)
            for task in turns:
                task.cancel()
            replay.stop()
            await asyncio.wait([users], timeout=_DRAIN_S)
            users.cancel()
            await asyncio.gather(*turns, users, return_exceptions=True)

    def _note(self, event: Event) -> None:
        assert isinstance(event, Request)
        now = monotonic_ns()
        failed = event.outcome != "completed"
        late = failed or event.ttft_ns is None or event.ttft_ns > (event.ttft_budget_ns or 0)
        late = late or (event.tpot_mean_ns is not None and event.tpot_mean_ns > (event.tpot_budget_ns or 0))
        self.served.append(Served(now - event.e2e_ns, now, failed, late, event.ttft_ns, event.reason))

    async def _roll_out(self, session: aiohttp.ClientSession, number: int) -> None:
        """One turn after another, whatever becomes of them."""
        luck = random.Random(self._seed * 1_000 + number)
        while True:
            body = {
                "input_ids": [luck.randrange(vocabulary.SIZE) for _ in range(_PROMPT_TOKENS)],
                "sampling_params": {"max_new_tokens": _TURN_TOKENS, "ignore_eos": True},
            }
            try:
                async with session.post(f"{self._gateway_url}/generate", json=body) as response:
                    await response.read()
                    done = response.status == 200
            except (aiohttp.ClientError, OSError):
                done = False
            if done:
                self.turns_done += 1
            else:
                self.turns_refused += 1
                await asyncio.sleep(luck.uniform(0.5, 1.5) * _PAUSE_S)

    def _ask_health(self) -> None:
        while not self._stopping.wait(_HEALTH_S):
            asked_ns = monotonic_ns()
            self.health.append((asked_ns, answers(f"{self._serving_url}/health")))


def answers(url: str) -> bool:
    """Whether a GET is answered with 200 in time."""
    try:
        with urllib.request.urlopen(url, timeout=_HEALTH_TIMEOUT_S) as response:
            return bool(response.status == 200)
    except (OSError, ValueError):
        return False
