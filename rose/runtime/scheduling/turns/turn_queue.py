"""Queues turns for a worker, oldest first. Only this module puts turns on engines."""

import asyncio
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from rose.clock import monotonic_ns
from rose.runtime.policy.routing import Placement, TurnFacts, WorkerFacts
from rose.runtime.scheduling.turns.turns import Trajectories, Turn, new_id
from rose.runtime.scheduling.workers import InFlight, Worker, WorkerTable

#: A turn without progress for this long fails, so that a trainer never hangs. Serving may want all its devices for
#: minutes; a client that waits less disconnects and ends its turn.
QUEUE_MAX_S = 600.0

Place = Callable[[TurnFacts, Iterable[WorkerFacts], int], Placement]


@dataclass(frozen=True, slots=True)
class Placed:
    worker: Worker
    item: InFlight
    reason: str
    queue_ns: int

    def release(self) -> None:
        self.worker.release(self.item)


@dataclass(slots=True, eq=False)
class _Waiting:
    turn: Turn
    since_ns: int
    placed: asyncio.Future[Placed | None]


class TurnQueue:
    """Runs on one asyncio loop without locks: placing a turn and taking its room is one step."""

    def __init__(self, table: WorkerTable, trajectories: Trajectories, place: Place) -> None:
        self._table, self._trajectories, self._place = table, trajectories, place
        #: By run and oldest accepted weights: turns that no engine can take are not tried one by one.
        self._waiting: dict[tuple[str, int], list[_Waiting]] = {}
        self.paused: set[str] = set()  # Runs whose turns go on no engine.

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def waited_ns(self, run_id: str, now_ns: int) -> int:
        return now_ns - min((waiting.since_ns for waiting in self._firsts(run_id)), default=now_ns)

    def first(self, run_id: str) -> Turn | None:
        return min((waiting.turn for waiting in self._firsts(run_id)), key=lambda turn: turn.arrived_ns, default=None)

    def _firsts(self, run_id: str) -> Iterator[_Waiting]:
        return (waiting[0] for key, waiting in self._waiting.items() if key[0] == run_id and waiting)

    def renew(self, run_id: str, turns: Collection[Turn], version_min: int) -> None:
        """Let these turns of the run, which want `version_min` now, wait for it."""
        for key in [key for key in self._waiting if key[0] == run_id and key[1] < version_min]:
            for waiting in self._waiting.pop(key):
                wanted = (run_id, version_min) if waiting.turn in turns else key
                insort(self._waiting.setdefault(wanted, []), waiting, key=lambda item: item.turn.arrived_ns)

    def end(self, run_id: str) -> None:
        """Let the run's turns go that must end."""
        for waiting in [waiting for key, alike in self._waiting.items() if key[0] == run_id for waiting in alike]:
            if waiting.turn.ended is not None and not waiting.placed.done():
                waiting.placed.set_result(None)

    async def place(self, turn: Turn) -> Placed | None:
        """Return a worker for the turn's next attempt; None if it waited too long without progress, or must end."""
        since_ns = monotonic_ns()
        if (left_s := QUEUE_MAX_S - turn.waited_ns / 1e9) <= 0 or turn.ended is not None:
            return None
        waiting = _Waiting(turn, since_ns, asyncio.get_running_loop().create_future())
        # Waiting turns were tried at the last change: this takes no room from them.
        self._dispatch_alike(turn.run_id, turn.version_min, [waiting], since_ns)
        if waiting.placed.done():
            return waiting.placed.result()
        key = (turn.run_id, turn.version_min)  # A turn taken off an engine keeps its place in the order of arrival.
        insort(self._waiting.setdefault(key, []), waiting, key=lambda item: item.turn.arrived_ns)
        try:
            async with asyncio.timeout(left_s):  # `wait_for` loses a cancellation if the turn was placed meanwhile.
                placed = await waiting.placed
        except (TimeoutError, asyncio.CancelledError) as error:
            taken = waiting.placed.result() if waiting.placed.done() and not waiting.placed.cancelled() else None
            if taken is not None:
                taken.release()
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
        # If a run has several lists, the one with the earliest turn goes first.
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
        # Room only shrinks in this loop: a turn that does not fit leaves no room for a similar one.
        nowhere: set[frozenset[str]] = set()
        placed: list[int] = []
        for index, item in enumerate(waiting):
            if len(placed) == room:
                break
            if item.placed.done():
                continue  # Cancelled, and not yet removed.
            turn = item.turn
            if (avoid := turn.avoids(self._table, now_ns)) in nowhere:
                continue
            own = self._trajectories.engine(turn.trajectory)
            # Trajectories of a group begin with the same prompt.
            alike = f"{run_id}#{hash(turn.request.prompt.text)}"
            prefix = own or self._trajectories.engine(alike)
            placement = self._place(TurnFacts(prefix, version_min, avoid), facts.values(), now_ns)
            if placement.engine_id is None:
                nowhere.add(avoid)
                continue
            worker = self._table[placement.engine_id]
            reason = placement.reason if item.since_ns == now_ns else "queue"
            taken = InFlight(
                request_id=new_id(),
                kv_tokens=turn.request.prompt.count + turn.request.sampling["max_new_tokens"],
                placed_ns=now_ns,
                lease_id=worker.report.lease_id,
                run_id=turn.run_id,
                version_min=turn.version_min,
                deaths=len(turn.deaths),
                life_ns=worker.life_ns,
            )
            worker.take(taken)
            turn.placed = worker, taken
            if own is None:
                self._trajectories.completed(alike, placement.engine_id)
            item.placed.set_result(Placed(worker, taken, reason, now_ns - item.since_ns))
            facts[placement.engine_id] = worker.facts
            placed.append(index)
        for index in reversed(placed):
            del waiting[index]
