"""Chooses where a turn runs, and computes how much device time the turns want."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

SLOWER_MAX = 2.0  # A turn may be so many times slower to avoid another prefill or dedicated time.
STALLED_PACES = 4  # A turn is stalled after this many times its time elsewhere, ...
STALLED_MIN_NS = 250_000_000  # ... which counts as at least this: moving costs another prefill.

Reason = Literal["prefix", "lease", "least_loaded", "queue"]


@dataclass(slots=True)
class WorkerFacts:
    """A rollout engine; times are monotonic ns. The class is not frozen: freezing would make it four times slower."""

    engine_id: str
    policy_version: int
    in_flight: int
    capacity: int
    slack_ok: bool
    alive_until_ns: int  # End of its liveness without further news; 0: not alive.
    lease_until_ns: int | None  # End of its lease; 0: none; None: a dedicated device.
    pace_ns: int = 0  # Recent time of a turn; 0: unknown.
    pace_turns: float = 0.0  # How many turns ran side by side in that time.
    pace_tokens: float = 0.0  # Tokens of such a turn: its prompt and the most new tokens; 0: unknown.
    busy_since_ns: int | None = None  # Since when it has had turns but completed none; None: it has no turns.

    @property
    def borrowed(self) -> bool:
        return self.lease_until_ns is not None

    @property
    def load(self) -> float:
        return (self.in_flight + 1) / self.capacity if self.capacity else float("inf")

    def alive(self, now_ns: int) -> bool:
        return self.alive_until_ns > now_ns

    def usable(self, now_ns: int) -> bool:
        return self.alive(now_ns) and (self.lease_until_ns is None or self.lease_until_ns > now_ns)

    def lease_left_ns(self, now_ns: int) -> int | None:
        return None if self.lease_until_ns is None else max(0, self.lease_until_ns - now_ns)

    def turn_ns(self, now_ns: int) -> int:
        if self.pace_ns == 0 or self.busy_since_ns is None:
            return self.pace_ns
        return max(self.pace_ns, now_ns - self.busy_since_ns)

    def expected_ns(self, now_ns: int, unknown_ns: int = 0) -> float:
        """Return how long one more turn would take, in ns. `unknown_ns` is used if the engine's pace is unknown."""
        return max(self.turn_ns(now_ns), 0 if self.pace_ns else unknown_ns) * max(
            1.0, (self.in_flight + 1) / (self.pace_turns + 1)
        )


@dataclass(frozen=True, slots=True)
class TurnFacts:
    prefix_engine_id: str | None
    version_min: int
    avoid: frozenset[str] = frozenset()  # The engines that have just preempted the turn.


@dataclass(frozen=True, slots=True)
class Placement:
    engine_id: str | None
    reason: Reason


def place(turn: TurnFacts, workers: Iterable[WorkerFacts], now_ns: int) -> Placement:
    """Choose a worker for one turn. An `engine_id` of None means that the turn waits.

    The worker with the turn's prefix comes first, then borrowed workers, whose time is already paid for. A worker that
    is more than `SLOWER_MAX` times slower than the quickest worker is not chosen. Workers without slack are the last
    resort. An unknown pace counts as the slowest known pace. If no pace is known, the load decides."""
    eligible = [worker for worker in workers if _eligible(turn, worker, now_ns)]
    ready = [worker for worker in eligible if worker.slack_ok] or eligible
    if not ready:
        return Placement(None, "queue")
    worst_ns = max((worker.turn_ns(now_ns) for worker in ready if worker.pace_ns), default=0)
    times = [worker.expected_ns(now_ns, worst_ns) if worst_ns else worker.load for worker in ready]
    slowest = SLOWER_MAX * min(times)
    quick = [(worker, time) for worker, time in zip(ready, times, strict=True) if time <= slowest]
    if any(worker.engine_id == turn.prefix_engine_id and worker.slack_ok for worker, _ in quick):
        return Placement(turn.prefix_engine_id, "prefix")
    dedicated, _, engine_id = min((not worker.borrowed, time, worker.engine_id) for worker, time in quick)
    return Placement(engine_id, "least_loaded" if dedicated else "lease")


def place_dedicated(turn: TurnFacts, workers: Iterable[WorkerFacts], now_ns: int) -> Placement:
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
    request_id: str
    engine_id: str
    version_min: int
    running_ns: int
    tokens: int = 0  # The tokens of its prompt, and the most new tokens that it may make.


def stalled(running: Iterable[RunningTurn], workers: Iterable[WorkerFacts], now_ns: int) -> list[RunningTurn]:
    """Return the turns to move off borrowed engines, longest first. Each would end far sooner on another engine."""
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
                and turn.running_ns > STALLED_PACES * max(_time_ns(turn, other, now_ns), STALLED_MIN_NS)
            ):
                room[engine_id] = left - 1
                chosen.append(turn)
                break
    return chosen


def _time_ns(turn: RunningTurn, other: WorkerFacts, now_ns: int) -> float:
    longer = turn.tokens / other.pace_tokens if other.pace_tokens else 1.0
    return other.turn_ns(now_ns) * max(1.0, longer)


ROUNDS_MAX = 32.0


@dataclass(frozen=True, slots=True)
class DemandFacts:
    turns: int
    turn_ns: int
    follow_share: float
    version_min: int
    waited_ns: int = 0


def wanted_ns(demand: DemandFacts, workers: Iterable[WorkerFacts], now_ns: int) -> dict[str, int]:
    """Return, by engine id, for how many ns (at least 1) turns and follow-up turns need each usable engine."""
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
