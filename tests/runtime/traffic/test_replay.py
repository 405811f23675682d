import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from rose.config import ServingConfig
from rose.events import Request
from rose.runtime.traffic.replay import Replay, Target
from rose.runtime.traffic.trace import FittedTrace, Trace

SERVING = ServingConfig(ttft_budget_ms=500, tpot_budget_ms=50)


def fitted(arrivals_ms: list[int], output_tokens: int = 4, period_ms: int = 1000) -> FittedTrace:
    count = len(arrivals_ms)
    trace = Trace(
        "t", np.array(arrivals_ms) * 10**6, np.arange(5, 5 + count), np.full(count, output_tokens, dtype=np.int64)
    )
    return FittedTrace(trace, 1.0, 1.0, 1.0, 1.0, period_ms * 10**6)


@dataclass
class Server:
    """Streams `max_tokens` tokens, `gap_s` apart, but none before `hold_requests` requests or `release`; `fault` is
    what goes wrong, `usage` whether tokens are counted."""

    gap_s: float = 0.002
    first_s: float = 0.0
    hold_requests: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str = ""
    usage: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    seen: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    headers: list[str | None] = field(default_factory=list)
    connections: list[asyncio.Transport | None] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.connections.append(request.transport)
        self.bodies.append(body)
        self.seen.put_nowait(None)
        if len(self.bodies) >= self.hold_requests:
            self.release.set()
        self.headers.append(request.headers.get("Authorization"))
        if self.fault == "503":
            return web.Response(status=503, text="no KV memory")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._stream(body, response)
        if self.fault == "cut":
            request.transport.abort()
        return response

    async def _stream(self, body: dict[str, Any], response: web.StreamResponse) -> None:
        async def send(payload: dict[str, Any] | str) -> None:
            text = payload if isinstance(payload, str) else json.dumps(payload)
            await response.write(f"data: {text}\n\n".encode())

        prompt_tokens = len(body["prompt"].split())
        usage: dict[str, Any] = {}
        await self.release.wait()
        await asyncio.sleep(self.first_s)
        total = body["max_tokens"]
        for done in range(1, total + 1):
            if self.usage:
                usage = {"usage": {"prompt_tokens": prompt_tokens, "completion_tokens": done}}
            await send({"choices": [{"index": 0, "text": "x", "finish_reason": None}], **usage})
            if self.fault and done >= total // 2:
                if self.fault == "hang":
                    await asyncio.sleep(60)
                return
            await asyncio.sleep(self.gap_s)
        await send({"choices": [{"index": 0, "text": "", "finish_reason": "length"}], **usage})
        if body["stream_options"]["include_usage"]:
            await send({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": total}})
        await send("[DONE]")


def against(server: Server, use: Callable[[str], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        app = web.Application()
        app.router.add_post("/v1/completions", server.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            return await use(f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def replay(server: Server, trace: FittedTrace, **options: Any) -> tuple[Counter[str], list[Request]]:
    requests: list[Request] = []
    target = {"token": options.pop("token")} if "token" in options else {}

    async def use(url: str) -> Counter[str]:
        served = Target(url=url, model="m", device_id="gpu0", engine_id="serving0", **target)
        return await Replay(trace, served, SERVING, requests.append, **options).run()

    return against(server, use), requests


@pytest.mark.parametrize("usage", [True, False])
def test_every_request_is_measured(usage: bool) -> None:
    server = Server(usage=usage, first_s=0.03, gap_s=0.01)
    counts, requests = replay(
        server, fitted([0, 20, 40]), token="secret", lease_at=lambda: f"lease-{len(server.bodies)}"
    )
    assert counts == {"completed": 3}
    assert server.headers == ["Bearer secret"] * 3
    assert len(set(server.connections)) == 3
    for body in server.bodies:
        assert (body["max_tokens"], body["ignore_eos"], body["stream"], body["model"]) == (4, True, True, "m")
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    for request, prompt in zip(sorted(requests, key=lambda r: r.request_id), (5, 6, 7), strict=True):
        assert (request.outcome, request.reason, request.output_tokens) == ("completed", None, 4)
        assert request.prompt_tokens == prompt
        assert (request.device_id, request.engine_id) == ("gpu0", "serving0")
        assert (request.ttft_budget_ns, request.tpot_budget_ns) == (500_000_000, 50_000_000)
        # What the server waits is a lower bound of what the client sees; an upper one would depend on the host's load.
        assert request.ttft_ns >= 30_000_000
        assert 0 < request.tpot_mean_ns <= request.tpot_max_ns
        assert request.e2e_ns >= request.ttft_ns + 3 * request.tpot_mean_ns
        assert request.send_delay_ns >= 0
    assert requests[0].lease_id == "lease-0"


def test_prompts_follow_from_the_seed_and_share_no_beginning() -> None:
    prompts = []
    for seed in (0, 0, 1):
        server = Server()
        replay(server, fitted(list(range(20)), output_tokens=1), seed=seed)
        prompts.append(sorted(body["prompt"] for body in server.bodies))
    assert prompts[0] == prompts[1] != prompts[2]
    assert len({tuple(prompt.split()[:3]) for prompt in prompts[0] + prompts[2]}) == 40


def test_a_slow_server_does_not_delay_arrivals() -> None:
    """The server answers no one until all eight requests are there: a closed loop would wait forever."""
    counts, requests = replay(Server(hold_requests=8), fitted(list(range(0, 40, 5))))
    assert counts == {"completed": 8}
    assert len({request.request_id for request in requests}) == 8


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("503", "HTTP 503: no KV memory"),
        ("early", "stream ended after 2 tokens without [DONE]"),
        ("cut", ""),
        ("hang", "timeout after 0.5 s with 2 tokens"),
    ],
)
def test_failures_are_recorded_with_their_reason(fault: str, reason: str) -> None:
    counts, requests = replay(Server(fault=fault), fitted([0, 3]), timeout_s=0.5)
    assert counts == {"failed": 2}
    for request in requests:
        assert request.outcome == "failed"
        assert request.reason
        assert request.reason == (reason or request.reason)
        assert (request.ttft_ns is None) == (fault == "503")


def test_no_server_at_all() -> None:
    requests: list[Request] = []
    running = Replay(fitted([0]), Target(url="http://127.0.0.1:1", model="m"), SERVING, requests.append)
    assert asyncio.run(running.run()) == {"failed": 1}
    assert "Cannot connect" in requests[0].reason


def test_the_bound_on_requests_in_flight_refuses_and_says_so() -> None:
    server = Server(hold_requests=99)
    requests: list[Request] = []

    def record(event: Request) -> None:
        requests.append(event)
        if len(requests) == 3:
            server.release.set()

    async def use(url: str) -> Counter[str]:
        target = Target(url=url, model="m")
        return await Replay(fitted([0, 1, 2, 3, 4]), target, SERVING, record, in_flight_max=2).run()

    assert against(server, use) == {"completed": 2, "failed": 3}
    assert [request.outcome for request in requests] == ["failed"] * 3 + ["completed"] * 2
    assert all(request.reason == "not sent: 2 requests already wait for the server" for request in requests[:3])
    assert len({request.request_id for request in requests}) == 5


def test_stop_sends_no_more_and_lets_the_rest_end() -> None:
    server = Server(first_s=0.1)
    requests: list[Request] = []

    async def use(url: str) -> Counter[str]:
        running = Replay(fitted([0, 60_000]), Target(url=url, model="m"), SERVING, requests.append)
        task = asyncio.create_task(running.run())
        await server.seen.get()
        running.stop()
        return await asyncio.wait_for(task, 10)

    assert against(server, use) == {"completed": 1}
    assert len(requests) == 1


def test_cancelling_ends_at_once_and_records_what_was_cut() -> None:
    server = Server(fault="hang")
    requests: list[Request] = []

    async def use(url: str) -> Counter[str]:
        running = Replay(fitted([0, 0, 60_000]), Target(url=url, model="m"), SERVING, requests.append)
        task = asyncio.create_task(running.run())
        for _ in range(2):
            await server.seen.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
        return running.outcomes

    assert against(server, use) == {"failed": 2}
    assert [request.reason for request in requests] == ["replay cancelled"] * 2


def test_repeating_starts_over_with_other_prompts() -> None:
    server = Server()
    requests: list[Request] = []

    async def use(url: str) -> Counter[str]:
        trace = fitted([0, 10], output_tokens=1, period_ms=20)
        running = Replay(trace, Target(url=url, model="m"), SERVING, requests.append, repeat=True)
        task = asyncio.create_task(running.run())
        for _ in range(7):
            await server.seen.get()
        running.stop()
        return await asyncio.wait_for(task, 10)

    counts = against(server, use)
    assert counts == {"completed": len(requests)}
    assert len({body["prompt"] for body in server.bodies}) == len(requests) >= 7


def test_a_recorder_that_fails_ends_the_replay() -> None:
    def record(_: Request) -> None:
        raise OSError("ledger is full")

    async def use(url: str) -> None:
        await Replay(fitted([0, 60_000]), Target(url=url, model="m"), SERVING, record).run()

    with pytest.raises(OSError, match="ledger is full"):
        against(Server(), use)
