"""Replays a trace against an OpenAI-compatible endpoint, in an open loop: no request waits for earlier answers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from rose.clock import monotonic_ns
from rose.config import ServingConfig
from rose.events import Event, Request
from rose.runtime.coserving.questions import unrecorded_id
from rose.runtime.traffic.prompts import prompt_text
from rose.runtime.traffic.stream import Arrivals, StreamError, follow
from rose.runtime.traffic.trace import FittedTrace

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    url: str
    model: str
    token: str | None = None
    device_id: str | None = None
    engine_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    request_id: str
    due_ns: int
    prompt_tokens: int
    output_tokens: int
    body: dict[str, Any]


@dataclass(slots=True, eq=False)
class Replay:
    """Replays a trace. Each request that becomes due is recorded as a `Request`. Call `stop()` in its event loop."""

    fitted: FittedTrace
    target: Target
    serving: ServingConfig
    record: Callable[[Event], object]
    lease_at: Callable[[], str | None] = lambda: None
    seed: int = 0
    repeat: bool = False
    in_flight_max: int = 256
    timeout_s: float = 120.0
    outcomes: Counter[str] = field(default_factory=Counter)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> Counter[str]:
        """Replay until the trace ends or `stop` is called. If this task is cancelled, requests in flight fail.
        Return the number of requests by outcome."""
        url = f"{self.target.url.rstrip('/')}/v1/completions"
        headers = {} if self.target.token is None else {"Authorization": f"Bearer {self.target.token}"}
        # Waiting for a connection would delay arrivals, and the server may close a kept one.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            try:
                async with asyncio.TaskGroup() as group:
                    for call in self._calls(monotonic_ns()):
                        if await self._stopped_by(call.due_ns):
                            break
                        if len(self._tasks) >= self.in_flight_max:
                            self._refuse(call)
                            continue
                        task = group.create_task(self._send(session, url, call))
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return self.outcomes

    def _calls(self, began_ns: int) -> Iterator[_Call]:
        trace, number = self.fitted.trace, 0
        columns = (trace.arrival_ns.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist())
        while True:
            for arrival, prompt, output in zip(*columns, strict=True):
                request_id = f"{trace.name}-{self.seed}-{number:09d}"
                yield _Call(request_id, began_ns + arrival, prompt, output, self._body(request_id, prompt, output))
                number += 1
            if not self.repeat:
                return
            began_ns += self.fitted.period_ns

    def _body(self, request_id: str, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
        return {
            "rid": unrecorded_id(),
            "prompt": prompt_text(request_id, prompt_tokens),
            "model": self.target.model,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }

    async def _stopped_by(self, due_ns: int) -> bool:
        if (wait_s := (due_ns - monotonic_ns()) / 1_000_000_000) <= 0:
            await asyncio.sleep(0)  # The replay is late: let responses be read.
            return self._stopping.is_set()
        try:
            await asyncio.wait_for(self._stopping.wait(), wait_s)
        except TimeoutError:
            return False
        return True

    async def _send(self, session: aiohttp.ClientSession, url: str, call: _Call) -> None:
        lease_id = self.lease_at()
        arrivals = Arrivals(monotonic_ns())
        reason: str | None = None
        try:
            async with session.post(url, json=call.body) as response:
                if response.status != 200:
                    body = (await response.content.read(200)).decode(errors="replace")
                    raise StreamError(f"HTTP {response.status}: {body}")
                await follow(response.content, arrivals)
        except StreamError as error:
            reason = str(error)
        except TimeoutError:
            reason = f"timeout after {self.timeout_s:g} s with {arrivals.tokens} tokens"
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a line beyond aiohttp's limit.
            reason = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            self._record_end(call, arrivals, lease_id, "replay cancelled")
            raise
        self._record_end(call, arrivals, lease_id, reason)

    def _refuse(self, call: _Call) -> None:
        reason = f"not sent: {self.in_flight_max} requests already wait for the server"
        self._record_end(call, Arrivals(monotonic_ns()), self.lease_at(), reason)

    def _record_end(self, call: _Call, arrivals: Arrivals, lease_id: str | None, reason: str | None) -> None:
        outcome: Literal["completed", "failed"] = "completed" if reason is None else "failed"
        self.outcomes[outcome] += 1
        self.record(
            Request(
                source="client",
                device_id=self.target.device_id,
                engine_id=self.target.engine_id,
                lease_id=lease_id,
                request_id=call.request_id,
                outcome=outcome,
                prompt_tokens=call.prompt_tokens if arrivals.prompt_tokens is None else arrivals.prompt_tokens,
                cached_tokens=arrivals.cached_tokens,
                output_tokens=arrivals.tokens,
                ttft_ns=arrivals.ttft_ns,
                tpot_mean_ns=arrivals.tpot_mean_ns,
                tpot_max_ns=arrivals.tpot_max_ns,
                e2e_ns=monotonic_ns() - arrivals.sent_ns,
                ttft_budget_ns=round(self.serving.ttft_budget_ms * _NS_PER_MS),
                tpot_budget_ns=round(self.serving.tpot_budget_ms * _NS_PER_MS),
                send_delay_ns=max(0, arrivals.sent_ns - call.due_ns),
                reason=reason,
            )
        )
