"""Carries each turn from its arrival to its answer, across all attempts. Requests with the same key share one turn."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import msgspec

from rose.clock import monotonic_ns
from rose.errors import UserError
from rose.runtime.scheduling.engines.assignment import Load
from rose.runtime.scheduling.engines.engine_calls import EngineCalls
from rose.runtime.scheduling.refusals import error_body
from rose.runtime.scheduling.runs.answers import AnswerStore
from rose.runtime.scheduling.runs.recorder import Recorder, turn_fields
from rose.runtime.scheduling.turns.answer import Tokens, array
from rose.runtime.scheduling.turns.turn_queue import QUEUE_MAX_S, TurnQueue
from rose.runtime.scheduling.turns.turns import DEATHS_MAX, Trajectories, Turn
from rose.runtime.weight_version import weights_name

KEY_GRACE_S = 10.0  # A turn with a key continues this long after its client left.
#: Waiting of one attempt without tokens counts at most this long: a late death must not end the turn.
ATTEMPT_WAITED_MAX_NS = 60_000_000_000

_SORTED = msgspec.json.Encoder(order="sorted")


class KeyReusedError(UserError):
    """The key belongs to another turn of the run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to the client of a turn. Status 200 comes with tokens. Status 400 means that an engine refused the
    turn, 409 that the run ended, and 503 that no engine made progress."""

    status: int
    body: bytes


class Client(Protocol):
    leave: Callable[[], object]


@dataclass(slots=True, eq=False)
class _Open:
    turn: Turn
    digest: bytes
    outcome: asyncio.Future[Outcome]
    maker: asyncio.Task[Any] | None = None
    waiting: int = 0


class TurnService:
    """Makes turns. Create and close the service inside a running event loop. The service calls `moved` when a turn
    arrives, or leaves an engine that now belongs to another run."""

    def __init__(
        self,
        engines: EngineCalls,
        queue: TurnQueue,
        trajectories: Trajectories,
        answers: AnswerStore,
        recorder: Recorder,
        moved: Callable[[str], None],
        why: Callable[[Turn], str],
    ) -> None:
        self._engines, self._queue, self._trajectories = engines, queue, trajectories
        self._answers, self._recorder, self._moved = answers, recorder, moved
        self._why = why
        self._open: dict[tuple[str, str], _Open] = {}
        self._tasks: set[asyncio.Task[Outcome]] = set()

    async def close(self) -> None:
        """Cancel the streamed turns. The other turns belong to tasks of the HTTP server."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def knows(self, turn: Turn) -> bool:
        """Return whether a turn with the same key is in progress or completed."""
        return turn.key is not None and (_name(turn) in self._open or self._answers.find(*_name(turn)) is not None)

    async def generate(self, turn: Turn, load: Load, client: Client) -> Outcome:
        """Return the outcome of the turn. If several clients send the turn, the task of the first client makes it.
        Raises KeyReusedError."""
        if turn.key is None:
            return await self._make(turn, load)
        open_turn = self._find(turn)
        if isinstance(open_turn, Outcome):
            return open_turn
        open_turn.waiting += 1
        if open_turn.turn is turn:
            client.leave = lambda: self._leave(open_turn)
            return await self._make_open(open_turn, load)
        try:
            return await asyncio.shield(open_turn.outcome)
        finally:
            self._leave(open_turn)

    async def stream(self, turn: Turn, load: Load) -> AsyncIterator[Turn | Outcome]:
        """Yield the turn each time it has more tokens, and finally its outcome. Raises KeyReusedError."""
        turn.news = asyncio.Event()
        open_turn = self._find(turn)
        if isinstance(open_turn, Outcome):
            yield open_turn
            return
        if open_turn.turn is turn:
            making = asyncio.create_task(self._make_open(open_turn, load))
            self._tasks.add(making)
            making.add_done_callback(self._tasks.discard)
        open_turn.waiting += 1
        try:
            # A turn of a client without streaming has no news until its end.
            while open_turn.turn.news is not None and not open_turn.outcome.done():
                news = asyncio.ensure_future(open_turn.turn.news.wait())
                ends: set[asyncio.Future[Any]] = {open_turn.outcome, news}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if not open_turn.outcome.done():
                    yield open_turn.turn
            yield await asyncio.shield(open_turn.outcome)
        finally:
            self._leave(open_turn)

    def _find(self, turn: Turn) -> _Open | Outcome:
        digest, name = _digest(turn), _name(turn)
        if (open_turn := self._open.get(name)) is None:
            if turn.key is not None and (kept := self._answers.find(*name)) is not None:
                kept_digest, answer = kept
                _check(turn, digest, kept_digest)
                return Outcome(200, answer)
            open_turn = self._open[name] = _Open(turn, digest, asyncio.get_running_loop().create_future())
        _check(turn, digest, open_turn.digest)
        return open_turn

    async def _make_open(self, open_turn: _Open, load: Load) -> Outcome:
        open_turn.maker = asyncio.current_task()
        try:
            outcome = await self._make(open_turn.turn, load, open_turn.digest)
        except asyncio.CancelledError:
            open_turn.outcome.cancel()
            raise
        except Exception as error:
            open_turn.outcome.set_exception(error)
            open_turn.outcome.exception()  # Mark the exception as retrieved: no client may wait.
            raise
        finally:
            del self._open[_name(open_turn.turn)]
        open_turn.outcome.set_result(outcome)
        return outcome

    def _leave(self, open_turn: _Open) -> None:
        open_turn.waiting -= 1
        if open_turn.waiting == 0 and not open_turn.outcome.done():
            asyncio.get_running_loop().call_later(
                0.0 if open_turn.turn.key is None else KEY_GRACE_S, _give_up, open_turn
            )

    async def _make(self, turn: Turn, load: Load, digest: bytes = b"") -> Outcome:
        now = monotonic_ns()
        number = self._trajectories.begin(turn.trajectory)
        turn.number = number if turn.request.labels.turn is None else turn.request.labels.turn
        load.begin(turn, now)
        self._moved(turn.run_id)
        status = 503
        try:
            status, answer = await self._run(turn, load)
        finally:
            load.end(turn)
            if status != 200:
                load.failed += 1
                self._queue.dispatch(monotonic_ns())
                self._recorder.turn_ended(turn_fields(turn, self._recorder.fleet_run_id))
        body = msgspec.json.encode(answer)
        if status == 200:
            fields = turn_fields(turn, self._recorder.fleet_run_id)
            if turn.key is not None:
                self._answers.keep(turn.run_id, turn.key, digest, body, msgspec.json.encode(fields))
            self._answers.count(turn.run_id, load.completed, load.tokens)
            self._recorder.turn_ended(fields)
        return Outcome(status, body)

    async def _run(self, turn: Turn, load: Load) -> tuple[int, dict[str, Any]]:
        while (placed := await self._queue.place(turn)) is not None:
            engine_id = placed.worker.report.engine_id
            result = await self._engines.attempt(turn, placed)
            now = monotonic_ns()
            turn.attempts.append(result.attempt)
            load.attempts[result.attempt["outcome"]] += 1
            turn.on_engines_ns += result.attempt["duration_ns"]
            self._queue.dispatch(now)
            if placed.worker.assigned != turn.run_id:
                self._moved(turn.run_id)
            if result.refusal is not None:
                return _failure(400, f"engine {engine_id} refused the turn: {result.refusal}", turn)
            if result.answer is not None and turn.take(
                result.answer, completed=result.attempt["outcome"] == "completed"
            ):
                result.attempt["outcome"] = "completed"
                load.complete(turn)
                self._trajectories.completed(turn.trajectory, engine_id)
                # The last engine's answer, with the tokens of all attempts.
                return 200, _answer(turn, turn.tokens, result.answer.meta)
            if result.answer is not None:
                turn.leave(engine_id, placed.item.lease_id, now)
            if not result.attempt["output_tokens"]:
                turn.waited_ns += min(result.attempt["duration_ns"], ATTEMPT_WAITED_MAX_NS)
                if result.died:
                    turn.deaths.add((engine_id, placed.item.life_ns))
                if len(turn.deaths) >= DEATHS_MAX:
                    why = f"engines died {DEATHS_MAX} times in a row on the turn, last {engine_id}"
                    return _failure(503, f"{why}; find the cause before you send it again", turn)
                await asyncio.sleep(turn.pause_s())
        if turn.aborted:
            return 200, _answer(turn, turn.tokens, {"finish_reason": {"type": "abort", "message": turn.ended}})
        if turn.ended is not None:
            return _failure(409, turn.ended, turn)
        why = self._why(turn) + ("" if turn.error is None else f"; {turn.error}")
        return _failure(503, f"no rollout engine made progress on the turn in {QUEUE_MAX_S:.0f} s: {why}", turn)


def _give_up(open_turn: _Open) -> None:
    if open_turn.waiting == 0 and open_turn.maker is not None and not open_turn.outcome.done():
        open_turn.maker.cancel()


def _name(turn: Turn) -> tuple[str, str]:
    return turn.run_id, turn.key or turn.trajectory + str(id(turn))


def _digest(turn: Turn) -> bytes:
    prompt = hashlib.blake2b(turn.request.prompt.text, digest_size=21)
    prompt.update(_SORTED.encode(turn.request.sampling))
    return prompt.digest()


def _check(turn: Turn, digest: bytes, before: bytes) -> None:
    if digest != before:
        raise KeyReusedError(f"key {turn.key!r} belongs to another turn of run {turn.run_id!r}: give each turn its own")


def answer_so_far(turn: Turn) -> bytes:
    return msgspec.json.encode(_answer(turn, turn.so_far, {"finish_reason": None}))


def _answer(turn: Turn, tokens: Tokens, meta: Mapping[str, object]) -> dict[str, Any]:
    fields = {
        "output_token_logprobs": array(tokens.logprobs),
        "completion_tokens": tokens.count,
        "prompt_tokens": turn.request.prompt.count,
        "rose": {"attempts": turn.attempts, "versions": tokens.versions},
    }
    if len(turn.attempts) > 1:  # The engine names only the last attempt's weights.
        fields["weight_versions"] = _spans(turn.run_id, tokens.versions)
    return {"output_ids": array(tokens.ids), "meta_info": {**meta, **fields}}


def _spans(run_id: str, versions: Sequence[int]) -> list[dict[str, Any]]:
    spans, start = list[dict[str, Any]](), 0
    for version, alike in groupby(versions):
        end = start + len(list(alike))
        spans.append({"version": weights_name(run_id, version), "start": start, "end": end})
        start = end
    return spans


def _failure(status: int, message: str, turn: Turn) -> tuple[int, dict[str, Any]]:
    return status, error_body(status, message) | {"rose": {"attempts": turn.attempts}}
