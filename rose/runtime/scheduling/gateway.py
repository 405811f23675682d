"""The rollout gateway: an HTTP server that speaks SGLang's `/generate` and places every turn by policy.

A trainer points at it as at one SGLang server. A turn that is preempted keeps the tokens it has and goes on
elsewhere; what happened to it is in `meta_info["rose"]["attempts"]` of the answer. An engine that fails is avoided and
the turn tried again; an engine that refuses a turn (4xx) has the last word. Prefixes of old weights are kept apart
from new ones by the engine itself.

Turns that wait or run are what makes the gateway want devices; when there are none, it wants none. Nothing that was
asked for lasts without being asked for again: a step expires, and a client that goes away takes its turns with it.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from rose.clock import monotonic_ns
from rose.runtime.policy.demand import DemandFacts, wanted_ns
from rose.runtime.policy.policies import POLICIES
from rose.runtime.scheduling.demand import Answers, Demand, Wanted
from rose.runtime.scheduling.engine_calls import EngineCalls
from rose.runtime.scheduling.messages import (
    GenerateRequest,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreemptReply,
    PreemptRequest,
    StepRequest,
)
from rose.runtime.scheduling.trajectories import Trajectories
from rose.runtime.scheduling.turn_queue import QUEUE_MAX_S, TurnQueue
from rose.runtime.scheduling.turns import Turn
from rose.runtime.scheduling.workers import WorkerTable

#: A prompt of eight million tokens; a longer body is refused.
REQUEST_BYTES_MAX = 64 << 20
#: Turns at once at most; beyond it a caller is told to come back.
TURNS_MAX = 10_000
#: How often it is looked after what only time changes.
TICK_S = 0.1
#: Expected length of a turn before any was seen; then a moving average.
_EXPECTED_NS = 500_000_000
_AVERAGE_WEIGHT = 0.1


class Gateway:
    """State and handlers; `start` binds, `stop` unbinds. One asyncio loop, no locks.

    `policy` names one of `rose.runtime.policy.policies.POLICIES`: its `place` puts turns on engines.
    """

    def __init__(self, host: str, port: int, token: str | None = None, policy: str = "rose") -> None:
        self._host, self._port, self._token = host, port, token
        self._workers = WorkerTable()
        self._trajectories = Trajectories()
        self._queue = TurnQueue(self._workers, self._trajectories, POLICIES[policy].place)
        self._turns: set[Turn] = set()
        self._step: tuple[StepRequest, int] | None = None  # and when it expires
        self._expected_ns = _EXPECTED_NS
        self._demand = Demand()
        self._wanted = Wanted()
        self._answers = Answers()
        self._news = asyncio.Event()
        self._engines: EngineCalls | None = None
        self._runner: web.AppRunner | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Bind and serve. Raises OSError if the port is taken."""
        self._engines = EngineCalls()
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
        # A client that goes away takes its turns with it: nobody would read them.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Answer polls, give up turns, unbind."""
        self._stopping = True
        self._tell()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._engines is not None:
            await self._engines.close()

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

    # ------------------------------------------------------------------ what agents ask

    async def _heartbeat(self, request: web.Request) -> web.Response:
        heartbeat = Heartbeat.model_validate_json(await request.read())
        assert self._engines is not None
        now = monotonic_ns()
        deadline = now + int(heartbeat.hold_s * 1e9)
        self._workers.hear(heartbeat, now)
        for worker, item in self._workers.unleased(heartbeat):
            self._engines.take_off_later(worker, item)
        self._queue.dispatch(now)
        self._assess(now)
        try:
            while not self._answers.due(heartbeat.device_id, heartbeat.seen, wanted := self._wanted_of(heartbeat)):
                left_s = (deadline - monotonic_ns()) / 1e9
                if left_s <= 0 or self._stopping:
                    break
                try:
                    await asyncio.wait_for(self._news.wait(), left_s)
                except TimeoutError:
                    break
        finally:
            self._workers.answered(heartbeat, monotonic_ns())
        wanted = self._wanted_of(heartbeat)
        workers = [self._workers[report.engine_id] for report in heartbeat.engines]
        return _json(
            HeartbeatReply(
                seq=self._answers.give(heartbeat.device_id, heartbeat.seen, wanted),
                renew=[
                    worker.lease_id
                    for worker in workers
                    if worker.lease_id is not None and worker.report.engine_id in wanted.engines_ns
                ],
                wanted_ns=dict(wanted.engines_ns),
                step=wanted.step,
            )
        )

    def _wanted_of(self, heartbeat: Heartbeat) -> Wanted:
        """What is wanted of the engines that an agent reports."""
        engines = {report.engine_id for report in heartbeat.engines}
        times = self._wanted.engines_ns
        return Wanted(self._wanted.step, {engine: times[engine] for engine in times.keys() & engines})

    async def _preempt(self, request: web.Request) -> web.Response:
        wanted = PreemptRequest.model_validate_json(await request.read())
        if wanted.engine_id not in self._workers:
            return web.json_response({"error": f"no engine {wanted.engine_id!r} has reported here"}, status=404)
        assert self._engines is not None
        worker = self._workers[wanted.engine_id]
        if wanted.kv_tokens is None:
            # Nothing new is placed there until its agent reports another lease.
            worker.withdrawn_lease_id = worker.report.lease_id
        chosen = self._workers.youngest(wanted.engine_id, wanted.kv_tokens)
        await self._engines.take_off(worker, chosen)
        return _json(PreemptReply(requests=len(chosen), kv_tokens=sum(item.kv_tokens for item in chosen)))

    async def _set_step(self, request: web.Request) -> web.Response:
        step = StepRequest.model_validate_json(await request.read())
        now = monotonic_ns()
        self._step = (step, now + int(step.expires_s * 1e9))
        self._pass_time(now)
        return web.json_response({})

    # ------------------------------------------------------------------ turns

    async def _generate(self, request: web.Request) -> web.Response:
        turn = Turn.begin(GenerateRequest.model_validate_json(await request.read()), monotonic_ns())
        if len(self._turns) >= TURNS_MAX:
            return web.json_response({"error": f"{len(self._turns)} turns wait already; try again later"}, status=429)
        self._turns.add(turn)
        self._trajectories.begin(turn.trajectory_id)
        if not self._wanted.engines_ns:
            self._assess(monotonic_ns())
        try:
            return await self._run_turn(turn)
        finally:
            self._turns.discard(turn)

    async def _run_turn(self, turn: Turn) -> web.Response:
        """Place the turn, as often as it takes, until it is complete, an engine refuses it or it gets nowhere."""
        assert self._engines is not None
        while (placed := await self._queue.place(turn)) is not None:
            engine_id = placed.worker.report.engine_id
            result = await self._engines.attempt(turn, placed)
            now = monotonic_ns()
            turn.attempts.append(result.attempt)
            turn.on_engines_ns += result.attempt["duration_ns"]
            # Room on an engine became free.
            self._queue.dispatch(now)
            if result.refusal is not None:
                return _failure(f"engine {engine_id} refused the turn: {result.refusal}", turn, 400)
            if result.answer is not None and turn.take(
                result.answer, completed=result.attempt["outcome"] == "completed"
            ):
                result.attempt["outcome"] = "completed"
                self._expected_ns += int(_AVERAGE_WEIGHT * (turn.on_engines_ns - self._expected_ns))
                self._trajectories.completed(turn.trajectory_id, engine_id)
                return _completion(turn, result.answer)
            if result.answer is not None:
                turn.leave(engine_id, placed.item.lease_id, now)
            if not result.attempt["output_tokens"]:
                await asyncio.sleep(turn.pause_s())
        return _failure(f"no rollout engine got on with the turn within {QUEUE_MAX_S:.0f} s", turn, 503)

    # ------------------------------------------------------------------ time and demand

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._pass_time(monotonic_ns())

    def _pass_time(self, now_ns: int) -> None:
        """What only time changes: a step that expires, agents that fall silent, engines that may be tried again."""
        if self._step is not None and self._step[1] <= now_ns:
            self._step = None
        self._queue.version_min = 0 if self._step is None else self._step[0].version_min
        for item in self._workers.lost(now_ns):
            if item.call is not None:
                item.call.cancel()
        self._queue.dispatch(now_ns)
        # With turns that wait, nobody has room; those that run are moved once it is others that are idle.
        if self._engines is not None and not len(self._queue):
            for worker, item in self._workers.stalled(now_ns):
                self._engines.take_off_later(worker, item)
        self._assess(now_ns)

    def _assess(self, now_ns: int) -> None:
        """Look anew at what is wanted, and wake the polls if that changed."""
        bound = self._queue.version_min
        facts = DemandFacts(
            turns=len(self._turns),
            turn_ns=self._expected_ns,
            follow_share=self._trajectories.follow_share,
            version_min=max(bound, min((turn.version_min for turn in self._turns), default=0)),
        )
        engines_ns = self._demand.assess(wanted_ns(facts, self._workers.facts(now_ns)), now_ns)
        wanted = Wanted(None if self._step is None else self._step[0].step, engines_ns)
        if wanted != self._wanted:
            self._wanted = wanted
            self._tell()

    def _tell(self) -> None:
        """Have every poll look again."""
        self._news.set()
        self._news = asyncio.Event()


def _completion(turn: Turn, answer: dict[str, Any]) -> web.Response:
    """The last engine's answer, with the tokens of all attempts."""
    meta: dict[str, Any] = answer["meta_info"]
    meta["output_token_logprobs"] = turn.logprobs
    meta["completion_tokens"] = len(turn.output_ids)
    meta["prompt_tokens"] = len(turn.request.input_ids)
    meta["rose"] = {"attempts": turn.attempts, "versions": turn.versions}
    return web.json_response({"output_ids": turn.output_ids, "meta_info": meta})


def _explain(error: ValidationError) -> str:
    """Where and what is wrong, without the value: it may be a whole prompt."""
    wrong = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'the body'}: {item['msg']}" for item in wrong)


def _same(given: str, secret: str) -> bool:
    """Equal, in a time that does not tell how far. Headers may hold bytes that are no text, kept as surrogates."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), secret.encode())


def _failure(message: str, turn: Turn, status: int) -> web.Response:
    return web.json_response({"error": message, "rose": {"attempts": turn.attempts}}, status=status)


def _json(message: Message) -> web.Response:
    return web.Response(text=message.model_dump_json(), content_type="application/json")
