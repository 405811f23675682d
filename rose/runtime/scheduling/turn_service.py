"""Repeats attempts at a turn until the turn has an answer. Requests with the same key share one turn."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import msgspec

from rose.clock import monotonic_ns
from rose.runtime.scheduling.engines.assignment import Load
from rose.runtime.scheduling.engines.engine_calls import EngineCalls
from rose.runtime.scheduling.refusals import RefusedError, error_body
from rose.runtime.scheduling.runs.answers import AnswerStore
from rose.runtime.scheduling.runs.recorder import Recorder, turn_events
from rose.runtime.scheduling.turns.answer import Tokens, array
from rose.runtime.scheduling.turns.turn_queue import QUEUE_MAX_S, TurnQueue
from rose.runtime.scheduling.turns.turns import DEATHS_MAX, Trajectories, Turn
from rose.runtime.weight_version import weights_name

KEY_GRACE_S = 10.0  # A turn with a key continues this long after its client left.
#: Waiting of one attempt without tokens counts at most this long: a late death must not end the turn.
ATTEMPT_WAITED_MAX_NS = 60_000_000_000

_SORTED = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer. Status 200: it has tokens; 400: the engine refused; 409: the run ended; 503: there was no progress."""

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


@dataclass(slots=True, eq=False)
class TurnService:
    """Runs turns until they have answers. Calls `moved` with the run's id when a turn arrives or loses its engine."""

    engines: EngineCalls
    queue: TurnQueue
    trajectories: Trajectories
    answers: AnswerStore
    recorder: Recorder
    moved: Callable[[str], None]
    why: Callable[[Turn], str]
    _open: dict[tuple[str, str], _Open] = field(default_factory=dict)
    _tasks: set[asyncio.Task[Outcome]] = field(default_factory=set)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def knows(self, turn: Turn) -> bool:
        return turn.key is not None and (_name(turn) in self._open or self.answers.find(*_name(turn)) is not None)

    async def generate(self, turn: Turn, load: Load, client: Client) -> Outcome:
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
        """Yield the turn each time it has more tokens, and finally its outcome."""
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
            if turn.key is not None and (kept := self.answers.find(*name)) is not None:
                _check(turn, digest, kept[0])
                return Outcome(200, kept[1])
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
            grace_s = 0.0 if open_turn.turn.key is None else KEY_GRACE_S
            asyncio.get_running_loop().call_later(grace_s, _give_up, open_turn)

    async def _make(self, turn: Turn, load: Load, digest: bytes = b"") -> Outcome:
        now = monotonic_ns()
        number = self.trajectories.begin(turn.trajectory)
        turn.number = number if turn.request.labels.turn is None else turn.request.labels.turn
        load.begin(turn, now)
        self.moved(turn.run_id)
        status = 503
        try:
            status, answer = await self._run(turn, load)
        finally:
            load.end(turn)
            attempts = turn_events(turn, self.recorder.fleet_run_id)
            if status != 200:
                load.failed += 1
                self.queue.dispatch(monotonic_ns())
                self.recorder.turn_ended(attempts)
        body = msgspec.json.encode(answer)
        if status == 200:
            if turn.key is not None:
                self.answers.keep(turn.run_id, turn.key, digest, body, msgspec.json.encode(attempts))
            self.answers.count(turn.run_id, load.completed, load.tokens)
            self.recorder.turn_ended(attempts)
        return Outcome(status, body)

    async def _run(self, turn: Turn, load: Load) -> tuple[int, dict[str, Any]]:
        while (placed := await self.queue.place(turn)) is not None:
            engine_id = placed.worker.report.engine_id
            result = await self.engines.attempt(turn, placed)
            now = monotonic_ns()
            turn.attempts.append(result.attempt)
            load.attempts[result.attempt["outcome"]] += 1
            turn.on_engines_ns += result.attempt["duration_ns"]
            self.queue.dispatch(now)
            if placed.worker.assigned != turn.run_id:
                self.moved(turn.run_id)
            if result.refusal is not None:
                return _failure(400, f"engine {engine_id} refused the turn: {result.refusal}", turn)
            completed = result.attempt["outcome"] == "completed"
            if result.answer is not None and turn.take(result.answer, completed=completed):
                result.attempt["outcome"] = "completed"
                load.complete(turn)
                self.trajectories.completed(turn.trajectory, engine_id)
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
        why = self.why(turn) + ("" if turn.error is None else f"; {turn.error}")
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
        owner = f"another turn of run {turn.run_id!r}"
        raise RefusedError(409, f"key {turn.key!r} belongs to {owner}: give each turn its own key")


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
