"""Turns that wait for a worker, oldest first; the one place where turns are put on engines."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rose.clock import monotonic_ns
from rose.runtime.policy.routing import Placement, TurnFacts, WorkerFacts
from rose.runtime.scheduling.trajectories import Trajectories
from rose.runtime.scheduling.turns import Turn, new_id
from rose.runtime.scheduling.workers import InFlight, Worker, WorkerTable

#: A turn that gets nowhere for this long is answered with an error, so that a trainer never hangs.
QUEUE_MAX_S = 60.0

Place = Callable[[TurnFacts, Iterable[WorkerFacts]], Placement]


@dataclass(frozen=True, slots=True)
class Placed:
    """A turn's room on an engine, taken until `release`."""

    worker: Worker
    item: InFlight
    reason: str
    queue_ns: int

    def release(self) -> None:
        self.worker.in_flight.pop(self.item.request_id, None)


@dataclass(slots=True, eq=False)
class _Waiting:
    turn: Turn
    since_ns: int
    placed: asyncio.Future[Placed | None]
    queued: bool = False


class TurnQueue:
    """One asyncio loop, no locks: a turn is placed, and its room taken, in one go."""

    def __init__(self, table: WorkerTable, trajectories: Trajectories, place: Place) -> None:
        self._table, self._trajectories, self._place = table, trajectories, place
        self._waiting: list[_Waiting] = []
        #: The bound of the open step, for turns of no run; a turn may have a stricter one.
        self.version_min = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def end(self, run_id: str) -> None:
        """Let go of the run's turns, which have been told that they are not to go on."""
        for waiting in self._waiting:
            if waiting.turn.run_id == run_id and not waiting.placed.done():
                waiting.placed.set_result(None)

    async def place(self, turn: Turn) -> Placed | None:
        """A worker for the turn's next attempt; None if it waited for too long without progress, or is to end."""
        since_ns = monotonic_ns()
        left_s = QUEUE_MAX_S - turn.waited_ns / 1e9
        if left_s <= 0 or turn.ended is not None:
            return None
        if not self._waiting and (placed := self._place_now(turn, since_ns)) is not None:
            return placed
        waiting = _Waiting(turn, since_ns, asyncio.get_running_loop().create_future())
        # A turn that was taken off an engine keeps its place among those that came after it.
        insort(self._waiting, waiting, key=lambda item: item.turn.arrived_ns)
        self.dispatch(since_ns)
        try:
            placed = await asyncio.wait_for(waiting.placed, left_s)
        except (TimeoutError, asyncio.CancelledError) as error:
            taken = waiting.placed.result() if waiting.placed.done() and not waiting.placed.cancelled() else None
            if taken is not None:
                taken.release()
            if isinstance(error, asyncio.CancelledError):
                raise
            return None
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        if placed is not None:
            turn.waited_ns += placed.queue_ns
        return placed

    def _place_now(self, turn: Turn, now_ns: int) -> Placed | None:
        """As `dispatch` would, where nobody waits."""
        engines = self._table.serving(turn.run_id, now_ns)
        version_min = self._version_min(turn)
        prefix = self._trajectories.engine(turn.trajectory)
        placement = self._place(TurnFacts(prefix, version_min, turn.avoids(self._table, now_ns)), engines)
        if placement.engine_id is None:
            return None
        worker = self._table[placement.engine_id]
        return Placed(worker, _take_room(turn, worker, version_min, now_ns), placement.reason, 0)

    def _version_min(self, turn: Turn) -> int:
        return turn.version_min if turn.run_id is not None else max(turn.version_min, self.version_min)

    def dispatch(self, now_ns: int) -> None:
        """Place what can be placed. Called whenever a worker changed, a turn came or an engine may be tried again."""
        if not self._waiting:
            return
        engines: dict[str | None, dict[str, WorkerFacts]] = {}
        # Room only shrinks meanwhile, so what fits nowhere for one turn fits nowhere for the next of its kind.
        nowhere: set[tuple[str | None, int, frozenset[str]]] = set()
        rest: list[_Waiting] = []
        for waiting in self._waiting:
            turn = waiting.turn
            if waiting.placed.done():
                continue
            run_id = turn.run_id
            if (facts := engines.get(run_id)) is None:
                facts = engines[run_id] = {facts.engine_id: facts for facts in self._table.serving(run_id, now_ns)}
            version_min = self._version_min(turn)
            kind = (run_id, version_min, turn.avoids(self._table, now_ns))
            placement = Placement(None, "queue")
            if kind not in nowhere:
                prefix = self._trajectories.engine(turn.trajectory)
                placement = self._place(TurnFacts(prefix, *kind[1:]), facts.values())
            if placement.engine_id is None:
                nowhere.add(kind)
                waiting.queued = True
                rest.append(waiting)
                continue
            worker = self._table[placement.engine_id]
            chosen = facts[placement.engine_id]
            facts[placement.engine_id] = replace(chosen, in_flight=chosen.in_flight + 1)
            reason = "queue" if waiting.queued else placement.reason
            waiting.placed.set_result(
                Placed(worker, _take_room(turn, worker, version_min, now_ns), reason, now_ns - waiting.since_ns)
            )
        self._waiting = rest


def _take_room(turn: Turn, worker: Worker, version_min: int, now_ns: int) -> InFlight:
    item = InFlight(
        request_id=new_id(),
        kv_tokens=len(turn.request.input_ids) + turn.tokens_max,
        placed_ns=now_ns,
        lease_id=worker.report.lease_id,
        run_id=turn.run_id,
        version_min=version_min,
    )
    worker.in_flight[item.request_id] = item
    return item
