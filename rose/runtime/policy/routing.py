"""Where a turn runs: the worker that holds its prefix or is borrowed, unless another is far quicker; else the queue.

And how much device time turns want, of which engines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

#: Another prefill, or a dedicated device's time instead of time that is paid for either way, is worth a turn that takes
#: up to this many times as long.
SLOWER_MAX = 2.0
#: A turn is stalled when it has taken this many times what it would take elsewhere, ...
STALLED_PACES = 4
#: ... which is never less than this: moving a turn costs another prefill.
STALLED_MIN_NS = 250_000_000

Reason = Literal["prefix", "lease", "least_loaded", "queue"]


@dataclass(slots=True)
class WorkerFacts:
    """One rollout engine as the router knows it. Times are monotonic nanoseconds: the same facts hold until one of them
    changes, and nobody looks at every engine anew for every turn.

    Nobody changes one, but to be frozen would make it four times as dear.
    """

    engine_id: str
    policy_version: int
    in_flight: int
    capacity: int
    #: False while serving leaves the device no slack; always true on a dedicated device.
    slack_ok: bool
    #: Until when it counts as alive if it is heard of no more; 0: it does not.
    alive_until_ns: int
    #: When its lease ends; 0: it has none; None: it is on a dedicated device.
    lease_until_ns: int | None
    #: How long a turn takes on it of late, and how many then ran side by side; 0 while that is unknown.
    pace_ns: int = 0
    pace_turns: float = 0.0
    #: Since when it has turns and has completed none; None: it has none.
    busy_since_ns: int | None = None

    @property
    def borrowed(self) -> bool:
        return self.lease_until_ns is not None

    @property
    def load(self) -> float:
        """With one more turn."""
        return (self.in_flight + 1) / self.capacity if self.capacity else float("inf")

    def alive(self, now_ns: int) -> bool:
        return self.alive_until_ns > now_ns

    def usable(self, now_ns: int) -> bool:
        """Whether it is alive, and its lease is in force if it needs one."""
        return self.alive_until_ns > now_ns and (self.lease_until_ns is None or self.lease_until_ns > now_ns)

    def lease_left_ns(self, now_ns: int) -> int | None:
        """None on a dedicated device."""
        return None if self.lease_until_ns is None else max(0, self.lease_until_ns - now_ns)

    def turn_ns(self, now_ns: int) -> int:
        """How long a turn takes on it: one that has completed nothing for longer is slower now than it was of late."""
        if self.pace_ns == 0 or self.busy_since_ns is None:
            return self.pace_ns
        return max(self.pace_ns, now_ns - self.busy_since_ns)

    def expected_ns(self, now_ns: int) -> float:
        """How long one more turn is expected to take: as long as of late, or longer if more run side by side now."""
        return self.turn_ns(now_ns) * max(1.0, (self.in_flight + 1) / (self.pace_turns + 1))


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What routing needs to know of a turn. `version_min` carries the staleness bound; `avoid` are engines that took
    the turn off and are still taking back what they lent."""

    prefix_engine_id: str | None
    version_min: int
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Placement:
    engine_id: str | None
    reason: Reason


def place(turn: TurnFacts, workers: Iterable[WorkerFacts], now_ns: int) -> Placement:
    """Choose a worker for one turn; `engine_id` None means that it waits.

    Eligible is a live worker with room that the turn need not avoid, whose weights are no older than the bound and
    whose lease, if it needs one, is in force. How long the turn will take does not matter: a lease that ends takes no
    tokens with it, the turn goes on elsewhere from what it has. Of the eligible:

    1. the holder of the turn's prefix, if it has slack ("prefix");
    2. else a borrowed one with slack ("lease"): the idle time of a serving device is paid for either way, and room on a
       dedicated one is what turns fall back on when serving takes its own back;
    3. else the one that is expected to be quickest ("least_loaded"), which 1 and 2 must not be `SLOWER_MAX` times
       slower than. An engine that shares its cores may be far slower than its load says. Until each engine's pace is
       known the least loaded counts as the quickest;
    4. those without slack only if none has any. If there is none at all, the turn waits ("queue").
    """
    eligible = [worker for worker in workers if _eligible(turn, worker, now_ns)]
    ready = [worker for worker in eligible if worker.slack_ok] or eligible
    if not ready:
        return Placement(None, "queue")
    known = all(worker.pace_ns for worker in ready)
    times = [worker.expected_ns(now_ns) if known else worker.load for worker in ready]
    slowest = SLOWER_MAX * min(times)
    best: tuple[bool, float, str] | None = None
    for worker, time in zip(ready, times, strict=True):
        if time <= slowest:
            if worker.engine_id == turn.prefix_engine_id and worker.slack_ok:
                return Placement(worker.engine_id, "prefix")
            rank = (worker.lease_until_ns is None, time, worker.engine_id)
            best = rank if best is None else min(best, rank)
    assert best is not None, "the quickest is no slower than itself"
    dedicated, _, engine_id = best
    return Placement(engine_id, "least_loaded" if dedicated else "lease")


def place_dedicated(turn: TurnFacts, workers: Iterable[WorkerFacts], now_ns: int) -> Placement:
    """`place` among the workers that are not on borrowed devices."""
    return place(turn, [worker for worker in workers if not worker.borrowed], now_ns)


def _eligible(turn: TurnFacts, worker: WorkerFacts, now_ns: int) -> bool:
    return (
        worker.in_flight < worker.capacity
        and worker.policy_version >= turn.version_min
        and worker.engine_id not in turn.avoid
        and worker.usable(now_ns)
    )


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn's request on an engine, and for how long it has been there."""

    request_id: str
    engine_id: str
    version_min: int
    running_ns: int


def stalled_after_ns() -> int:
    """No turn that has run for less is stalled."""
    return STALLED_PACES * STALLED_MIN_NS


def stalled(running: Iterable[RunningTurn], workers: Iterable[WorkerFacts], now_ns: int) -> list[RunningTurn]:
    """The turns to take off borrowed engines, since another engine has room and would have made them by now.

    A lent device may give rollouts little of its time for a while, and the last turns of a step would wait there for
    serving to become idle. A turn is taken off when it has run `STALLED_PACES` times as long as a turn takes on an
    engine with slack and room, the longest first, and no more than there is room for.
    """
    table = {worker.engine_id: worker for worker in workers}
    room = {
        worker.engine_id: worker.capacity - worker.in_flight
        for worker in table.values()
        if worker.usable(now_ns) and worker.slack_ok and worker.pace_ns > 0
    }
    chosen: list[RunningTurn] = []
    for turn in sorted(running, key=lambda item: -item.running_ns):
        if not table[turn.engine_id].borrowed:
            continue
        for engine_id, left in room.items():
            other = table[engine_id]
            if (
                left > 0
                and engine_id != turn.engine_id
                and other.policy_version >= turn.version_min
                and turn.running_ns > STALLED_PACES * max(other.turn_ns(now_ns), STALLED_MIN_NS)
            ):
                room[engine_id] = left - 1
                chosen.append(turn)
                break
    return chosen


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
