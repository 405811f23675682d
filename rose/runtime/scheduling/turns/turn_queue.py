"""Queues turns until an engine has room, oldest turn first."""

import asyncio
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from rose.clock import monotonic_ns
from rose.runtime.policy.routing import Placement, TurnFacts, WorkerFacts
from rose.runtime.scheduling.turns.turns import Trajectories, Turn, new_id
from rose.runtime.scheduling.workers import InFlight, Worker, WorkerTable

#: A turn without progress fails after this many seconds, so that a trainer never hangs. Serving may need all its
#: devices for minutes.
QUEUE_MAX_S = 600.0

Place = Callable[[TurnFacts, Iterable[WorkerFacts], int], Placement]


@dataclass(frozen=True, slots=True)
class Placed:
    worker: Worker
    item: InFlight
    reason: str
    queue_ns: int


@dataclass(slots=True, eq=False)
class _Waiting:
    turn: Turn
    since_ns: int
    placed: asyncio.Future[Placed | None]


class TurnQueue:
    """The queue of turns. An engine is chosen and its room is taken in one step, so no other turn gets this room."""

    def __init__(self, table: WorkerTable, trajectories: Trajectories, place: Place) -> None:
        self._table, self._trajectories, self._place = table, trajectories, place
        #: By run and oldest accepted weights, to skip many turns that fit no engine.
        self._waiting: dict[tuple[str, int], list[_Waiting]] = {}
        self.paused: set[str] = set()

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def waited_ns(self, run_id: str, now_ns: int) -> int:
        return now_ns - min((waiting.since_ns for waiting in self._firsts(run_id)), default=now_ns)

    def first(self, run_id: str) -> Turn | None:
        return min((waiting.turn for waiting in self._firsts(run_id)), key=lambda turn: turn.arrived_ns, default=None)

    def _firsts(self, run_id: str) -> Iterator[_Waiting]:
        return (waiting[0] for key, waiting in self._waiting.items() if key[0] == run_id and waiting)

    def renew(self, run_id: str, turns: Collection[Turn], version_min: int) -> None:
        for key in [key for key in self._waiting if key[0] == run_id and key[1] < version_min]:
            for waiting in self._waiting.pop(key):
                new_key = (run_id, version_min) if waiting.turn in turns else key
                insort(self._waiting.setdefault(new_key, []), waiting, key=lambda item: item.turn.arrived_ns)

    def end(self, run_id: str) -> None:
        for waiting in [waiting for key, alike in self._waiting.items() if key[0] == run_id for waiting in alike]:
            if waiting.turn.ended is not None and not waiting.placed.done():
                waiting.placed.set_result(None)

    async def place(self, turn: Turn) -> Placed | None:
        """Return an engine for the turn, or None if the turn waited too long or must end."""
        since_ns = monotonic_ns()
        if (left_s := QUEUE_MAX_S - turn.waited_ns / 1e9) <= 0 or turn.ended is not None:
            return None
        waiting = _Waiting(turn, since_ns, asyncio.get_running_loop().create_future())
        # Waiting turns found no room at the last change.
        self._dispatch_alike(turn.run_id, turn.version_min, [waiting], since_ns)
        if waiting.placed.done():
            return waiting.placed.result()
        key = (turn.run_id, turn.version_min)  # A preempted turn keeps its place in the order of arrival.
        insort(self._waiting.setdefault(key, []), waiting, key=lambda item: item.turn.arrived_ns)
        try:
            async with asyncio.timeout(left_s):  # `wait_for` loses a cancellation if the turn was placed meanwhile.
                placed = await waiting.placed
        except (TimeoutError, asyncio.CancelledError) as error:
            placed = waiting.placed.result() if waiting.placed.done() and not waiting.placed.cancelled() else None
            if placed is not None:
                placed.worker.release(placed.item)
            self._remove(waiting)
            if isinstance(error, asyncio.CancelledError):
                raise
            return None
        if placed is not None:
            turn.waited_ns += placed.queue_ns
        else:
            self._remove(waiting)
        return placed

    def _remove(self, waiting: _Waiting) -> None:
        key = (waiting.turn.run_id, waiting.turn.version_min)
        alike = self._waiting.get(key, [])
        if waiting in alike:
            alike.remove(waiting)
        if not alike:
            self._waiting.pop(key, None)

    def dispatch(self, now_ns: int) -> None:
        # The list with the earliest turn goes first.
        for key in sorted(self._waiting, key=lambda key: self._waiting[key][0].turn.arrived_ns):
            waiting = self._waiting[key]
            self._dispatch_alike(*key, waiting, now_ns)
            if not waiting:
                del self._waiting[key]

    def _dispatch_alike(self, run_id: str, version_min: int, waiting: list[_Waiting], now_ns: int) -> None:
        if run_id in self.paused:
            return
        facts = {
            worker.engine_id: worker
            for worker in self._table.serving(run_id)
            if worker.alive(now_ns) and worker.policy_version >= version_min
        }
        room = sum(max(0, worker.capacity - worker.in_flight) for worker in facts.values())
        # Room only shrinks in this loop: a turn without room leaves no room for a similar turn.
        nowhere: set[frozenset[str]] = set()
        placed: list[int] = []
        for index, item in enumerate(waiting):
            if len(placed) == room:
                break
            if item.placed.done():
                continue  # It was cancelled, and not yet removed.
            turn = item.turn
            if (avoid := turn.avoids(self._table, now_ns)) in nowhere:
                continue
            engine_id = self._trajectories.engine(turn.trajectory)
            # Trajectories of a group begin with one prompt.
            alike = f"{run_id}#{hash(turn.request.prompt.text)}"
            prefix = engine_id or self._trajectories.engine(alike)
            placement = self._place(TurnFacts(prefix, version_min, avoid), facts.values(), now_ns)
            if placement.engine_id is None:
                nowhere.add(avoid)
                continue
            worker = self._table[placement.engine_id]
            reason = placement.reason if item.since_ns == now_ns else "queue"
            in_flight = InFlight(
                request_id=new_id(),
                kv_tokens=turn.request.prompt.count + turn.request.sampling["max_new_tokens"],
                placed_ns=now_ns,
                lease_id=worker.report.lease_id,
                run_id=turn.run_id,
                version_min=turn.version_min,
                deaths=len(turn.deaths),
                life_ns=worker.life_ns,
            )
            worker.take(in_flight)
            turn.placed = worker, in_flight
            if engine_id is None:
                self._trajectories.completed(alike, placement.engine_id)
            item.placed.set_result(Placed(worker, in_flight, reason, now_ns - item.since_ns))
            facts[placement.engine_id] = worker.facts
            placed.append(index)
        for index in reversed(placed):
            del waiting[index]
