"""Where a turn runs: the worker that holds its prefix, else borrowed capacity, else the least loaded, or the queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Reason = Literal["prefix", "lease", "least_loaded", "queue"]


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One rollout engine as the router knows it. `lease_left_ns` is None on a dedicated device."""

    engine_id: str
    alive: bool
    policy_version: int
    in_flight: int
    capacity: int
    lease_left_ns: int | None
    #: False while serving leaves the device no slack; always true on a dedicated device.
    slack_ok: bool

    @property
    def borrowed(self) -> bool:
        return self.lease_left_ns is not None

    @property
    def load(self) -> float:
        return self.in_flight / self.capacity if self.capacity else float("inf")


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What routing needs to know of a turn. `version_min` carries the staleness bound."""

    prefix_engine_id: str | None
    version_min: int
    expected_ns: int


@dataclass(frozen=True, slots=True)
class Placement:
    engine_id: str | None
    reason: Reason


def place(turn: TurnFacts, workers: Iterable[WorkerFacts]) -> Placement:
    """Choose a worker for one turn; `engine_id` None means that it waits.

    No turn goes to a lease that ends before the turn is expected to, or to weights older than the bound. Borrowed
    capacity comes first at equal load: a dedicated device is paid for whether it is used or not, but so is the idle
    time of a serving device, and only the first can take the turns that serving will send back.
    """
    eligible = [worker for worker in workers if _eligible(turn, worker)]
    for worker in eligible:
        if worker.engine_id == turn.prefix_engine_id and worker.slack_ok:
            return Placement(worker.engine_id, "prefix")
    ready = [worker for worker in eligible if worker.slack_ok] or eligible
    if not ready:
        return Placement(None, "queue")
    best = min(ready, key=lambda worker: (worker.load, not worker.borrowed, worker.engine_id))
    return Placement(best.engine_id, "lease" if best.borrowed else "least_loaded")


def _eligible(turn: TurnFacts, worker: WorkerFacts) -> bool:
    return (
        worker.alive
        and worker.policy_version >= turn.version_min
        and worker.in_flight < worker.capacity
        and (worker.lease_left_ns is None or worker.lease_left_ns > turn.expected_ns)
    )
