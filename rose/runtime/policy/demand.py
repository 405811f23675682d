"""How much device time rollouts want, and of which engines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rose.runtime.policy.routing import WorkerFacts

#: A trajectory is expected to go on for at most this many turns, however long the ones before it were.
ROUNDS_MAX = 32.0


@dataclass(frozen=True, slots=True)
class DemandFacts:
    """The turns that are queued or in flight anywhere."""

    turns: int
    #: Expected time of one turn on an engine.
    turn_ns: int
    #: Share of turns that another one of their trajectory follows, 0 to 1.
    follow_share: float
    #: The lowest version that one of the turns accepts.
    version_min: int
    #: For how long the first of them has waited for an engine.
    waited_ns: int = 0


def wanted_ns(demand: DemandFacts, workers: Iterable[WorkerFacts], now_ns: int) -> dict[str, int]:
    """Expected device time wanted of each engine, in nanoseconds, at least 1; none where nothing is wanted.

    Wanted is every live engine whose weights are new enough, with a lease or not. Turns on one engine run side by side,
    so its device is wanted for as many turn lengths as the turns fill all engines, and less if there are fewer turns
    than engines. A trajectory that may go on is expected to do so for 1 / (1 - follow_share) turns. What waits is
    wanted for as long as it has waited, at least: however dear a lease is and short the turns are, they come to be
    worth one.
    """
    if demand.turns == 0:
        return {}
    usable = [worker for worker in workers if worker.alive(now_ns) and worker.policy_version >= demand.version_min]
    capacity = sum(worker.capacity for worker in usable)
    if capacity == 0:
        return {}
    fill = max(min(1.0, demand.turns / len(usable)), demand.turns / capacity)
    rounds = min(ROUNDS_MAX, 1.0 / max(1.0 - demand.follow_share, 1.0 / ROUNDS_MAX))
    expected = max(1, int(demand.turn_ns * fill * rounds), demand.waited_ns)
    return {worker.engine_id: expected for worker in usable if worker.capacity}
