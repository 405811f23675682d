"""The rollout gateway: an HTTP server that speaks SGLang's `/generate` and places every turn by policy.

A trainer points at it as at one SGLang server. A turn that is preempted keeps the tokens it has and goes on
elsewhere; what happened to it is in `meta_info["rose"]["attempts"]` of the answer. An engine that fails is avoided and
the turn tried again; an engine that refuses a turn (4xx) has the last word. Prefixes of old weights are kept apart
from new ones by the engine itself.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import uuid
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from rose.clock import monotonic_ns
from rose.runtime.policy.routing import TurnFacts, place
from rose.runtime.scheduling.messages import (
    GenerateRequest,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreemptReply,
    PreemptRequest,
    StepRequest,
)
from rose.runtime.scheduling.workers import InFlight, WorkerTable

#: A prompt of eight million tokens; a longer body is refused.
REQUEST_BYTES_MAX = 64 << 20
#: A turn is given up after this many attempts: every one of them was preempted or failed.
ATTEMPTS_MAX = 16
#: Wait before a turn whose engine failed is tried again: the first, doubled with each failure up to the last.
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 1.0
#: A turn that finds no worker for this long is answered with an error, so that a trainer never hangs.
QUEUE_MAX_S = 60.0
#: Turns that wait for a worker at most; beyond it a caller is told to come back.
QUEUE_MAX_TURNS = 10_000
#: Expected length of a turn before any was seen; then a moving average.
_EXPECTED_NS = 500_000_000
_AVERAGE_WEIGHT = 0.1


class Gateway:
    """State and handlers; `start` binds, `stop` unbinds. One asyncio loop, no locks."""

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        self._host, self._port, self._token = host, port, token
        self._workers = WorkerTable()
        self._changed = asyncio.Event()
        self._waiting = 0
        self._step: StepRequest | None = None
        self._prefix_engine: dict[str, str] = {}
        self._expected_ns = _EXPECTED_NS
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Bind and serve. Raises OSError if the port is taken."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
        )
        app = web.Application(middlewares=[self._guard], client_max_size=REQUEST_BYTES_MAX)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/workers", self._list_workers),
                web.post("/generate", self._generate),
                web.post("/heartbeat", self._heartbeat),
                web.post("/preempt", self._preempt),
                web.post("/step", self._set_step),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self._token is not None and not _same(request.headers.get("Authorization", ""), f"Bearer {self._token}"):
            return web.json_response({"error": "send the gateway's token as `Authorization: Bearer ...`"}, status=401)
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except ValidationError as error:
            return web.json_response({"error": _explain(error)}, status=400)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _list_workers(self, _request: web.Request) -> web.Response:
        now = monotonic_ns()
        return web.json_response(
            [
                {
                    "engine_id": facts.engine_id,
                    "alive": facts.alive,
                    "borrowed": facts.borrowed,
                    "policy_version": facts.policy_version,
                    "in_flight": facts.in_flight,
                    "capacity": facts.capacity,
                    "lease_left_ns": facts.lease_left_ns,
                    "slack_ok": facts.slack_ok,
                }
                for facts in self._workers.facts(now)
            ]
        )

    async def _heartbeat(self, request: web.Request) -> web.Response:
        heartbeat = Heartbeat.model_validate_json(await request.read())
        self._workers.hear(heartbeat, monotonic_ns())
        self._wake()
        wanted = self._step is not None and self._step.open
        leases = [report.lease_id for report in heartbeat.engines if report.lease_id is not None]
        return _json(HeartbeatReply(renew=leases if wanted else []))

    async def _set_step(self, request: web.Request) -> web.Response:
        self._step = StepRequest.model_validate_json(await request.read())
        self._prefix_engine.clear()
        self._wake()
        return web.json_response({})

    async def _preempt(self, request: web.Request) -> web.Response:
        wanted = PreemptRequest.model_validate_json(await request.read())
        if wanted.engine_id not in self._workers:
            return web.json_response({"error": f"no engine {wanted.engine_id!r} has reported here"}, status=404)
        worker = self._workers[wanted.engine_id]
        if wanted.kv_tokens is None:
            # Nothing new is placed there until its agent reports a lease again.
            worker.report = worker.report.model_copy(update={"lease_id": None, "lease_left_ns": None})
        chosen = self._workers.youngest(wanted.engine_id, wanted.kv_tokens)
        await asyncio.gather(*(self._abort(worker.report.url, item.request_id) for item in chosen))
        return _json(PreemptReply(requests=len(chosen), kv_tokens=sum(item.kv_tokens for item in chosen)))

    async def _abort(self, url: str, request_id: str) -> None:
        assert self._session is not None
        try:
            async with self._session.post(f"{url}/abort_request", json={"rid": request_id}):
                pass
        except aiohttp.ClientError:
            pass  # the engine is gone, and its requests with it

    async def _generate(self, request: web.Request) -> web.Response:
        turn = GenerateRequest.model_validate_json(await request.read())
        if self._waiting >= QUEUE_MAX_TURNS:
            return web.json_response({"error": f"{self._waiting} turns wait already; try again later"}, status=503)
        return await self._run_turn(turn)

    async def _run_turn(self, turn: GenerateRequest) -> web.Response:
        """Place the turn, as often as it takes, until it is complete or an engine refuses it."""
        trajectory_id = (turn.rose and turn.rose.trajectory_id) or uuid.uuid4().hex
        sampling = turn.sampling
        tokens_max: int = sampling["max_new_tokens"]
        output_ids: list[int] = []
        logprobs: list[list[object]] = []
        versions: list[int] = []
        attempts: list[dict[str, object]] = []
        backoff_s = BACKOFF_FIRST_S

        for _ in range(ATTEMPTS_MAX):
            queued_ns = monotonic_ns()
            placed = await self._place(trajectory_id)
            if placed is None:
                return _failure(f"no rollout engine could take the turn within {QUEUE_MAX_S:.0f} s", attempts, 503)
            engine_id, reason = placed
            attempt, answer, refusal = await self._attempt(
                engine_id,
                turn.input_ids + output_ids,
                {**sampling, "max_new_tokens": tokens_max - len(output_ids)},
            )
            attempt |= {"placement": reason, "queue_ns": attempt["began_ns"] - queued_ns}
            del attempt["began_ns"]
            attempts.append(attempt)
            if refusal is not None:
                return _failure(f"engine {engine_id} refused the turn: {refusal}", attempts, 400)
            if answer is None:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
                continue
            meta: dict[str, Any] = answer["meta_info"]
            made: list[int] = answer.get("output_ids") or []
            output_ids += made
            logprobs += meta.get("output_token_logprobs") or []
            versions += _versions(meta, len(made))
            if attempt["outcome"] == "completed" or len(output_ids) >= tokens_max:
                attempt["outcome"] = "completed"
                self._prefix_engine[trajectory_id] = engine_id
                meta["output_token_logprobs"] = logprobs
                meta["completion_tokens"] = len(output_ids)
                meta["rose"] = {"attempts": attempts, "versions": versions}
                return web.json_response({"output_ids": output_ids, "meta_info": meta})
        return _failure(f"the turn was preempted or failed {ATTEMPTS_MAX} times", attempts, 503)

    async def _place(self, trajectory_id: str) -> tuple[str, str] | None:
        deadline = monotonic_ns() + int(QUEUE_MAX_S * 1e9)
        queued = False
        self._waiting += 1
        try:
            while (now := monotonic_ns()) < deadline:
                turn = TurnFacts(
                    prefix_engine_id=self._prefix_engine.get(trajectory_id),
                    version_min=0 if self._step is None else self._step.version_min,
                    expected_ns=self._expected_ns,
                )
                placement = place(turn, self._workers.facts(now))
                if placement.engine_id is not None:
                    return placement.engine_id, "queue" if queued else placement.reason
                queued = True
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), timeout=1.0)
                except TimeoutError:
                    pass
            return None
        finally:
            self._waiting -= 1

    async def _attempt(
        self, engine_id: str, input_ids: list[int], sampling: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any] | None, str | None]:
        """One request to one engine: (the attempt's record, its answer, why it refused). Both None: it failed."""
        assert self._session is not None
        worker = self._workers[engine_id]
        report = worker.report
        began = monotonic_ns()
        # Ids of equal length are prefix-free, and SGLang aborts by prefix.
        request_id = uuid.uuid4().hex
        worker.in_flight[request_id] = InFlight(request_id, len(input_ids) + int(sampling["max_new_tokens"]), began)
        attempt: dict[str, Any] = {
            "engine_id": engine_id,
            "device_id": report.device_id,
            "lease_id": report.lease_id,
            "policy_version": report.policy_version,
            "prompt_tokens": len(input_ids),
            "cached_tokens": 0,
            "output_tokens": 0,
            "outcome": "failed",
            "began_ns": began,
        }
        answer: dict[str, Any] | None = None
        refusal: str | None = None
        try:
            async with self._session.post(
                f"{report.url}/generate",
                json={
                    "input_ids": input_ids,
                    "sampling_params": sampling,
                    "return_logprob": True,
                    "rid": request_id,
                },
            ) as response:
                if response.status == 200:
                    answer = await response.json()
                elif 400 <= response.status < 500:
                    refusal = _engine_message(await response.text())
                else:
                    worker.suspected = True
        except (aiohttp.ClientError, ConnectionError):
            worker.suspected = True
        finally:
            del worker.in_flight[request_id]
            self._wake()
        attempt["duration_ns"] = monotonic_ns() - began
        if answer is not None:
            meta = answer["meta_info"]
            aborted = (meta.get("finish_reason") or {}).get("type") == "abort"
            attempt["outcome"] = "preempted" if aborted else "completed"
            attempt["cached_tokens"] = int(meta.get("cached_tokens", 0))
            attempt["output_tokens"] = len(answer.get("output_ids") or [])
            if not aborted:
                self._expected_ns += int(_AVERAGE_WEIGHT * (attempt["duration_ns"] - self._expected_ns))
        return attempt, answer, refusal

    def _wake(self) -> None:
        self._changed.set()


def _versions(meta: dict[str, Any], tokens: int) -> list[int]:
    """The policy version of each token, from SGLang's spans; an engine that was never updated reports "default"."""
    versions = [0] * tokens
    for span in meta.get("weight_versions") or []:
        number = int(span["version"]) if str(span["version"]).isdigit() else 0
        for index in range(int(span["start"]), min(int(span["end"]), tokens)):
            versions[index] = number
    return versions


def _engine_message(text: str) -> str:
    """What an engine's error says: SGLang answers `{"error": {"message": ...}}`. Anything else is taken as it is."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text


def _explain(error: ValidationError) -> str:
    """Where and what is wrong, without the value: it may be a whole prompt."""
    wrong = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'the body'}: {item['msg']}" for item in wrong)


def _same(given: str, secret: str) -> bool:
    """Equal, in a time that does not tell how far. Headers may hold bytes that are no text, kept as surrogates."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), secret.encode())


def _failure(message: str, attempts: list[dict[str, object]], status: int) -> web.Response:
    return web.json_response({"error": message, "rose": {"attempts": attempts}}, status=status)


def _json(message: Message) -> web.Response:
    return web.Response(text=message.model_dump_json(), content_type="application/json")
