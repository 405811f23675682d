"""Sends requests to rollout engines: one attempt at a turn, and aborts of turns."""

import asyncio
import json
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import aiohttp
import msgspec

from rose.clock import monotonic_ns
from rose.http_calls import LINE_BYTES_MAX, authorization, watched_socket
from rose.runtime.coserving.questions import question
from rose.runtime.scheduling.messages import EngineReport
from rose.runtime.scheduling.turns.answer import Answer
from rose.runtime.scheduling.turns.turn_queue import Placed
from rose.runtime.scheduling.turns.turns import Turn
from rose.runtime.scheduling.workers import InFlight, Worker

_REPEAT_S = 0.25  # An abort may overtake its turn, so it is repeated.
#: Every engine refuses such a turn. Other errors come from one engine, such as 401 from another server on the port.
_REFUSALS = frozenset({400, 413, 422})
_IDLE_S = 1.0
_EVENT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Response = AbstractAsyncContextManager[aiohttp.ClientResponse]


@dataclass(frozen=True, slots=True)
class Result:
    attempt: dict[str, Any]
    answer: Answer | None = None
    refusal: str | None = None
    died: bool = False


@dataclass(frozen=True, slots=True)
class _Reply:
    """The answer of an engine. Status 0 means that no complete answer came."""

    status: int
    answer: Answer | None = None
    error: str = ""
    died: bool = False

    @property
    def failure(self) -> str:
        text = _engine_message(self.error)
        if self.status:
            text = f"answered {self.status}" + (f": {text}" if text else "")
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        return " ".join(text.split())[:300]  # A turn may have hundreds of attempts.


class EngineCalls:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    @cached_property
    def _session(self) -> aiohttp.ClientSession:  # Needs a running event loop.
        # SGLang closes idle connections after 5 s.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, socket_factory=watched_socket)
        no_limit, no_cookies = aiohttp.ClientTimeout(total=None), aiohttp.DummyCookieJar()
        return aiohttp.ClientSession(connector=connector, timeout=no_limit, cookie_jar=no_cookies)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def attempt(self, turn: Turn, placed: Placed) -> Result:
        worker, item = placed.worker, placed.item
        report = worker.report
        began = monotonic_ns()
        attempt: dict[str, Any] = {
            "engine_id": report.engine_id,
            "device_id": report.device_id,
            "lease_id": item.lease_id,
            "policy_version": report.policy_version,
            "prompt_tokens": turn.request.prompt.count + turn.tokens.count,
            "cached_tokens": 0,
            "output_tokens": 0,
            "outcome": "failed",
            "placement": placed.reason,
            "queue_ns": placed.queue_ns,
        }
        body = turn.request.fields | {
            "input_ids": turn.request.prompt.with_ids(turn.tokens.ids),
            "sampling_params": turn.sampling,
            "return_logprob": True,
            "rid": item.request_id,
        }
        item.waiting = asyncio.current_task()
        try:
            streams = turn.news is not None
            reply = await (self._stream(report, body, turn) if streams else self._post(report, body))
        except asyncio.CancelledError:
            self._spawn(self._abort(report, item.request_id))
            # Tokens streamed before the engine was given up count.
            if item.waiting is None or not item.cut or item.waiting.uncancel() > 0:
                counts = {} if turn.part is None else _token_counts(turn.part)
                turn.attempts.append(attempt | counts | {"duration_ns": monotonic_ns() - began})
                raise
            reply = _Reply(0, turn.part, "did not answer, and was given up")
        finally:
            item.waiting = None
            worker.release(item)
        end_ns = monotonic_ns()
        attempt["duration_ns"] = end_ns - began
        answer = reply.answer
        if reply.status == 0 and answer is not None and answer.finish is not None:
            reply = _Reply(200, answer)  # The connection broke after the whole answer.
        if reply.status in _REFUSALS:
            return Result(attempt, refusal=_engine_message(reply.error))
        broke = reply.status != 200
        if broke:
            attempt["error"] = reply.failure
            worker.suspect()
        died = reply.died and not item.taken_off and item.lease_id == worker.lease_id
        if answer is None:
            return Result(attempt, died=died)
        received, answer = answer, answer.of_run(turn.run_id)
        foreign = answer is not received
        if foreign:
            # The engine's weights changed during the turn: later tokens belong to another run.
            attempt["error"] = "made tokens with another run's weights"
        attempt |= _token_counts(answer)
        failed = broke or foreign
        if not failed and answer.finish != "abort":
            attempt["outcome"] = "completed"
            worker.record_pace(attempt["duration_ns"], end_ns, item.kv_tokens)
        elif not failed or attempt["output_tokens"]:
            attempt["outcome"] = "preempted"
        return Result(attempt, answer, died=died)

    async def take_off(self, worker: Worker, items: Iterable[InFlight]) -> None:
        chosen = list(items)
        for item in chosen:
            item.taken_off = True
        await asyncio.gather(*(self._abort(worker.report, item.request_id) for item in chosen))
        for item in chosen:
            self._spawn(self._insist(worker, item))

    def take_off_later(self, worker: Worker, item: InFlight) -> None:
        item.taken_off = True
        self._spawn(self._insist(worker, item))

    async def _insist(self, worker: Worker, item: InFlight) -> None:
        deadline = monotonic_ns() + int(10.0 * 1e9)  # Then the engine counts as hanging.
        while item.request_id in worker.in_flight and monotonic_ns() < deadline:
            await self._abort(worker.report, item.request_id)
            await asyncio.sleep(_REPEAT_S)
        if item.request_id in worker.in_flight:
            item.give_up()

    async def _abort(self, engine: EngineReport, request_id: str) -> None:
        with suppress(*_FAILURES):
            body = question("end", request_id)  # SGLang's own abort may lose existing tokens.
            async with asyncio.timeout(2.0), self._generate(engine, body) as response:
                await response.read()

    def _generate(self, engine: EngineReport, body: dict[str, Any]) -> _Response:
        headers = {"Content-Type": "application/json", **authorization(engine.token)}
        url, data = f"{engine.url}/generate", msgspec.json.encode(body)
        return self._session.post(url, data=data, headers=headers, allow_redirects=False)

    async def _post(self, engine: EngineReport, body: dict[str, Any]) -> _Reply:
        try:
            async with self._generate(engine, body) as response:
                if response.status == 200:
                    return _Reply(200, Answer.read(await response.read()))
                return _Reply(response.status, error=await response.text("utf-8", errors="replace"))
        except _FAILURES as error:
            return _broken(error)

    async def _stream(self, engine: EngineReport, body: dict[str, Any], turn: Turn) -> _Reply:
        try:
            async with self._generate(engine, body | {"stream": True}) as response:
                if response.status != 200:
                    return _Reply(response.status, error=await response.text("utf-8", errors="replace"))
                while line := await response.content.readline(max_line_length=LINE_BYTES_MAX):
                    if (data := line.removeprefix(b"data:").strip()) == b"[DONE]":
                        return _Reply(200, turn.part)
                    if line.startswith(b"data:"):
                        if _is_error(data):
                            return _Reply(400, error=data.decode(errors="replace"))
                        part = Answer.read(data).with_version(turn.run_id, engine.policy_version)
                        if part.of_run(turn.run_id) is not part:
                            return _Reply(200, part)  # Later tokens belong to another run too.
                        turn.grow(part)
            return _Reply(0, turn.part, "broke off before the end")
        except _FAILURES as error:
            return _broken(error, turn.part)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_FAILURES = (aiohttp.ClientError, OSError, ValueError)


def _broken(error: Exception, part: Answer | None = None) -> _Reply:
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.InvalidURL)):
        return _Reply(0, part, f"could not be reached: {error}")
    if isinstance(error, (aiohttp.ClientError, OSError)):
        return _Reply(0, part, f"broke off: {error}", died=True)
    return _Reply(0, part, f"made no sense: {error}")


def _token_counts(answer: Answer) -> dict[str, int]:
    return {"cached_tokens": answer.cached_tokens, "output_tokens": answer.tokens.count}


def _is_error(data: bytes) -> bool:
    with suppress(msgspec.MsgspecError, RecursionError):
        return b'"error"' in data and "error" in _EVENT.decode(data)
    return False


def _engine_message(text: str) -> str:
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        return str(json.loads(text)["error"]["message"])
    return text
