"""The worker table: which rollout engines there are, what runs on them, and when each was last heard of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rose.errors import UserError
from rose.runtime.policy.routing import RunningTurn, WorkerFacts, stalled, stalled_after_ns
from rose.runtime.scheduling.messages import EngineReport, Heartbeat

#: An engine whose agent is overdue by this much takes no new turns, ...
SILENCE_MAX_NS = 2_000_000_000
#: ... by this much, its turns are taken for lost and go on elsewhere, ...
LOST_NS = 10_000_000_000
#: ... and by this much it is forgotten.
FORGET_NS = 60_000_000_000
_PACE_WEIGHT = 0.1


class UnknownEngineError(UserError):
    """No engine of that id has reported here."""


@dataclass(slots=True, eq=False)
class InFlight:
    """A turn's request on an engine: its id there, and the KV slots it will hold at its longest."""

    request_id: str
    kv_tokens: int
    placed_ns: int
    #: The run that the turn is of.
    run_id: str
    lease_id: str | None = None
    #: The oldest weights that the turn may be made with.
    version_min: int = 0
    #: Who waits for the engine's answer, while it is waited for.
    waiting: asyncio.Task[Any] | None = None
    #: Set once the engine is given up.
    cut: bool = False
    #: Set once the engine was asked to give it up.
    taken_off: bool = False
    #: Under how many lives of engines the turn has been until they died, and which life of its engine this is.
    deaths: int = 0
    life_ns: int = 0

    def give_up(self) -> None:
        """Wait for the engine no longer: what it has not answered is lost."""
        if self.waiting is not None and not self.cut:
            self.cut = True
            self.waiting.cancel()


@dataclass(slots=True)
class Worker:
    report: EngineReport
    heard_ns: int
    #: When its agent is to be heard of next: later than `heard_ns` while it waits for an answer.
    due_ns: int
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    #: Set when a request to it failed; cleared by the next heartbeat that says it is alive.
    suspected: bool = False
    #: The lease that is being taken back: a report that was on its way may still name it.
    withdrawn_lease_id: str | None = None
    #: When it was last reported to be lent; 0: never.
    lent_ns: int = 0
    #: When it was first reported alive since it was not: another one is another life of the engine.
    life_ns: int = 0
    #: How long turns take here and how many ran side by side, moving averages; 0 before the first one.
    pace_ns: int = 0
    pace_turns: float = 0.0
    #: When a turn was completed here last.
    completed_ns: int = 0
    #: The run whose turns it takes, since when, and how long it took then, or since it began anew, until it held that
    #: run's weights.
    assigned: str | None = None
    assigned_ns: int = 0
    switch_ns: int = 0
    drained: bool = False
    _facts: WorkerFacts | None = field(default=None, init=False)

    @property
    def lease_id(self) -> str | None:
        """The lease that turns may be placed under."""
        lease_id = self.report.lease_id
        return None if lease_id == self.withdrawn_lease_id else lease_id

    @property
    def held_version(self) -> int | None:
        """The version that it holds of `report.run_id`; None: its weights belong to no run."""
        return None if self.report.run_id is None else self.report.policy_version

    def serves(self, run_id: str) -> bool:
        """Whether it takes turns of that run now: it is assigned to it, and holds its weights."""
        return self.assigned == run_id == self.report.run_id and not self.drained

    def assign(self, run_id: str | None, now_ns: int) -> None:
        self.assigned, self.assigned_ns = run_id, now_ns

    def overdue_ns(self, now_ns: int) -> int:
        return now_ns - self.due_ns

    def unlent_ns(self, now_ns: int) -> int:
        """For how long it has not been lent; 0 if it needs no lease."""
        if not self.report.borrowed or self.lease_id is not None:
            return 0
        return now_ns - self.lent_ns

    @property
    def facts(self) -> WorkerFacts:
        """What routing knows of it, until it is heard of, gets a turn, ends one or fails."""
        if self._facts is None:
            self._facts = self._look()
        return self._facts

    def _look(self) -> WorkerFacts:
        report, lease_until_ns = self.report, None
        if report.borrowed:
            lease_until_ns = 0
            if self.lease_id is not None and report.lease_left_ns is not None:
                lease_until_ns = self.heard_ns + report.lease_left_ns
        return WorkerFacts(
            engine_id=report.engine_id,
            policy_version=report.policy_version,
            in_flight=len(self.in_flight),
            capacity=report.capacity,
            slack_ok=report.slack_ok,
            alive_until_ns=self.due_ns + SILENCE_MAX_NS if report.alive and not self.suspected else 0,
            lease_until_ns=lease_until_ns,
            pace_ns=self.pace_ns,
            pace_turns=self.pace_turns,
            busy_since_ns=max(self.completed_ns, self.oldest_ns) if self.in_flight else None,
        )

    def hear(self, report: EngineReport, now_ns: int, due_ns: int) -> None:
        """Its agent reports it, and is to be heard of again by `due_ns`."""
        if report.alive and not self.report.alive:
            self.life_ns = now_ns
        if report.run_id == self.assigned != self.report.run_id:
            self.switch_ns = now_ns - max(self.assigned_ns, self.life_ns)
        self.report, self.heard_ns, self.due_ns = report, now_ns, due_ns
        self.suspected = self.suspected and not report.alive
        self._facts = None

    def expect(self, due_ns: int) -> None:
        """It is to be heard of by then, rather than when it was before."""
        self.due_ns = due_ns
        self._facts = None

    def suspect(self) -> None:
        """A request to it failed."""
        self.suspected = True
        self._facts = None

    def withdraw(self) -> None:
        """Its lease is being taken back: nothing is placed there until its agent reports another."""
        self.withdrawn_lease_id = self.report.lease_id
        self._facts = None

    def take(self, item: InFlight) -> None:
        self.in_flight[item.request_id] = item
        self._facts = None

    def release(self, item: InFlight) -> None:
        """Nothing, if it is not there."""
        self.in_flight.pop(item.request_id, None)
        self._facts = None

    @property
    def oldest_ns(self) -> int:
        """When the first of the turns that are on it was placed."""
        return next(iter(self.in_flight.values())).placed_ns

    def took(self, duration_ns: int, now_ns: int) -> None:
        """A turn was completed here in so long, and is no longer in flight."""
        self.completed_ns = now_ns
        weight = 1.0 if self.pace_ns == 0 else _PACE_WEIGHT
        self.pace_ns += int(weight * (duration_ns - self.pace_ns))
        self.pace_turns += weight * (len(self.in_flight) + 1 - self.pace_turns)
        self._facts = None


class WorkerTable:
    """All workers, by engine id."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}

    def __getitem__(self, engine_id: str) -> Worker:
        return self._workers[engine_id]

    def __contains__(self, engine_id: str) -> bool:
        return engine_id in self._workers

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def hear(self, heartbeat: Heartbeat, now_ns: int) -> None:
        """Take up what an agent reports; it is to be heard of again once its poll may have been answered."""
        due_ns = now_ns + int(heartbeat.hold_s * 1e9)
        for report in heartbeat.engines:
            worker = self._workers.get(report.engine_id)
            if worker is None:
                worker = self._workers[report.engine_id] = Worker(report, now_ns, due_ns, life_ns=now_ns)
            else:
                worker.hear(report, now_ns, due_ns)
            if worker.lease_id is not None:
                worker.lent_ns = now_ns

    def answered(self, heartbeat: Heartbeat, now_ns: int) -> None:
        """The heartbeat was answered, or its connection broke: the next one is due now."""
        for report in heartbeat.engines:
            worker = self._workers.get(report.engine_id)
            if worker is not None:
                worker.expect(min(worker.due_ns, now_ns))

    def serving(self, run_id: str) -> list[WorkerFacts]:
        """The engines that take turns of the run."""
        # As `Worker.serves`, without a call for each engine at every turn.
        return [
            worker.facts
            for worker in self._workers.values()
            if worker.assigned == run_id == worker.report.run_id and not worker.drained
        ]

    def unleased(self, heartbeat: Heartbeat) -> list[tuple[Worker, InFlight]]:
        """Turns on a borrowed engine that has no lease any more, not yet taken off."""
        return [
            (worker, item)
            for report in heartbeat.engines
            if report.borrowed and (worker := self._workers[report.engine_id]).lease_id is None
            for item in worker.in_flight.values()
            if item.lease_id is not None and not item.taken_off
        ]

    def stalled(self, now_ns: int) -> list[tuple[Worker, InFlight]]:
        """Turns that would be done by now on another engine, which has room for them."""
        running: dict[str, list[RunningTurn]] = {}
        for engine_id, worker in self._workers.items():
            if worker.report.borrowed and worker.assigned is not None and worker.serves(worker.assigned):
                # Those that were placed first come first.
                for item in worker.in_flight.values():
                    if now_ns - item.placed_ns < stalled_after_ns():
                        break
                    if not item.taken_off:
                        turn = RunningTurn(item.request_id, engine_id, item.version_min, now_ns - item.placed_ns)
                        running.setdefault(worker.assigned, []).append(turn)
        return [
            (worker := self._workers[turn.engine_id], worker.in_flight[turn.request_id])
            for run_id, turns in running.items()
            for turn in stalled(turns, self.serving(run_id), now_ns)
        ]

    def lost(self, now_ns: int) -> list[InFlight]:
        """Turns on engines whose agent has been silent for too long. Forgets engines that nobody speaks for."""
        for engine_id, worker in list(self._workers.items()):
            if not worker.in_flight and worker.overdue_ns(now_ns) > FORGET_NS:
                del self._workers[engine_id]
        silent = [worker for worker in self._workers.values() if worker.overdue_ns(now_ns) > LOST_NS]
        return [item for worker in silent for item in worker.in_flight.values()]

    def youngest(self, engine_id: str, kv_tokens: int | None) -> list[InFlight]:
        """The requests to take off an engine: the youngest that together hold `kv_tokens`, or all."""
        newest_first = sorted(self._workers[engine_id].in_flight.values(), key=lambda item: -item.placed_ns)
        if kv_tokens is None:
            return newest_first
        chosen: list[InFlight] = []
        held = 0
        for item in newest_first:
            if held >= kv_tokens:
                break
            chosen.append(item)
            held += item.kv_tokens
        return chosen
