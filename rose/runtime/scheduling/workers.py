"""The table of rollout engines, with their turns and the times of their agents' reports."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from rose.runtime.policy.routing import STALLED_MIN_NS, STALLED_PACES, RunningTurn, WorkerFacts, stalled
from rose.runtime.scheduling.messages import EngineReport, Heartbeat

SILENCE_MAX_NS = 2_000_000_000  # If the report of an agent is late by this time, its engines take no new turns.
LOST_NS = 10_000_000_000  # If it is this late, their turns count as lost and continue on other engines.
FORGET_NS = 60_000_000_000  # If it is this late, engines without turns are forgotten.


@dataclass(slots=True, eq=False)
class InFlight:
    request_id: str
    kv_tokens: int
    placed_ns: int
    run_id: str
    lease_id: str | None = None
    version_min: int = 0
    waiting: asyncio.Task[Any] | None = None
    cut: bool = False  # Whether the engine is given up.
    taken_off: bool = False  # Whether the engine was asked to abort the request.
    deaths: int = 0  # Number of engine lives that ended under the turn.
    life_ns: int = 0  # When this engine's life began.

    def give_up(self) -> None:
        if self.waiting is not None and not self.cut:
            self.cut = True
            self.waiting.cancel()


@dataclass(slots=True)
class Worker:
    report: EngineReport
    heard_ns: int
    due_ns: int  # When its agent's next report is due: later than `heard_ns` while a heartbeat is held.
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    suspected: bool = False  # A request to it failed since its last report.
    withdrawn_lease_id: str | None = None  # This lease ends: a late report may still name it.
    lent_ns: int = 0  # Its last report with a lease; 0: never.
    failed_ns: int = 0  # First failed sync since the last good sync; 0: none.
    life_ns: int = 0  # First report of its present life.
    pace_ns: int = 0  # Moving average of a turn's duration; 0 before the first.
    pace_turns: float = 0.0  # Moving average of concurrent turns; 0 before the first.
    pace_tokens: float = 0.0  # Moving average of a turn's `kv_tokens`; 0 before the first.
    completed_ns: int = 0
    assigned: str | None = None  # The run whose turns it takes.
    assigned_ns: int = 0  # When the assignment began.
    switch_ns: int = 0  # Time from assignment to the run's weights, without an engine start.
    model_ns: int = 0  # When its model changed, then when the first weights came.
    start_ns: int = 0  # The last known time of a start.
    drained: bool = False
    _facts: WorkerFacts | None = field(default=None, init=False)

    @property
    def lease_id(self) -> str | None:
        lease_id = self.report.lease_id
        return None if lease_id == self.withdrawn_lease_id else lease_id

    @property
    def held_version(self) -> int | None:
        return None if self.report.run_id is None else self.report.policy_version

    def serves(self, run_id: str) -> bool:
        return self.assigned == run_id == self.report.run_id and not self.drained

    def assign(self, run_id: str | None, now_ns: int) -> None:
        self.assigned, self.assigned_ns = run_id, now_ns

    def overdue_ns(self, now_ns: int) -> int:
        return now_ns - self.due_ns

    def model_since_ns(self, now_ns: int) -> int:
        """Return when the engine got its model's first weights. If it still waits for weights, return `now_ns`."""
        has_no_weights = self.model_ns and self.report.run_id is None and self.report.failed is None
        return now_ns if has_no_weights else self.model_ns

    def unable_ns(self, now_ns: int, version_min: int = 0) -> int:
        """Return the longer of two times: without a lease, and without weights of `version_min` since a failed sync."""
        unlent_ns = now_ns - self.lent_ns if self.report.borrowed and self.lease_id is None else 0
        lacks = self.report.run_id != self.assigned or self.report.policy_version < version_min
        return max(unlent_ns, now_ns - self.failed_ns if self.failed_ns and lacks else 0)

    @property
    def facts(self) -> WorkerFacts:
        if self._facts is None:
            self._facts = self._look()
        return self._facts

    def _look(self) -> WorkerFacts:
        report, lease_until_ns = self.report, None
        oldest = next(iter(self.in_flight.values()), None)
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
            pace_tokens=self.pace_tokens,
            busy_since_ns=None if oldest is None else max(self.completed_ns, oldest.placed_ns),
        )

    def hear(self, report: EngineReport, now_ns: int, due_ns: int) -> None:
        if report.alive and not self.report.alive:
            self.life_ns = now_ns
        if report.run_id == self.assigned != self.report.run_id:
            self.switch_ns = now_ns - max(self.assigned_ns, self.life_ns)
        last_report = self.report
        changed = report.model != last_report.model and None not in (report.model, last_report.model)
        if changed or (self.model_ns and last_report.run_id is None and report.run_id is not None):
            self.model_ns = now_ns
        if (report.run_id, report.policy_version) != (last_report.run_id, last_report.policy_version):
            self.failed_ns = 0
        elif report.failed is not None:
            self.failed_ns = self.failed_ns or now_ns
        self.report, self.heard_ns, self.due_ns = report, now_ns, due_ns
        self.suspected = self.suspected and not report.alive
        self._facts = None

    def expect(self, due_ns: int) -> None:
        self.due_ns = due_ns
        self._facts = None

    def suspect(self) -> None:
        self.suspected = True
        self._facts = None

    def withdraw(self) -> None:
        self.withdrawn_lease_id = self.report.lease_id
        self._facts = None

    def take(self, item: InFlight) -> None:
        self.in_flight[item.request_id] = item
        self._facts = None

    def release(self, item: InFlight) -> None:
        self.in_flight.pop(item.request_id, None)
        self._facts = None

    def record_pace(self, duration_ns: int, now_ns: int, kv_tokens: int) -> None:
        self.completed_ns = now_ns
        weight = 1.0 if self.pace_ns == 0 else 0.1
        self.pace_ns += int(weight * (duration_ns - self.pace_ns))
        self.pace_turns += weight * (len(self.in_flight) + 1 - self.pace_turns)
        self.pace_tokens += weight * (kv_tokens - self.pace_tokens)
        self._facts = None


class WorkerTable(dict[str, Worker]):
    def running(self) -> Iterator[tuple[Worker, InFlight]]:
        return ((worker, item) for worker in self.values() for item in worker.in_flight.values())

    def hear(self, heartbeat: Heartbeat, now_ns: int) -> None:
        due_ns = now_ns + int(heartbeat.hold_s * 1e9)
        for report in heartbeat.engines:
            if (worker := self.get(report.engine_id)) is None:
                worker = self[report.engine_id] = Worker(report, now_ns, due_ns, life_ns=now_ns)
            else:
                worker.hear(report, now_ns, due_ns)
            worker.start_ns = report.start_ns or worker.start_ns
            if worker.lease_id is not None:
                worker.lent_ns = now_ns

    def answered(self, heartbeat: Heartbeat, now_ns: int) -> None:
        """Note that the agent's next heartbeat is due now, because this heartbeat was answered."""
        for report in heartbeat.engines:
            if (worker := self.get(report.engine_id)) is not None:
                worker.expect(min(worker.due_ns, now_ns))

    def serving(self, run_id: str) -> list[WorkerFacts]:
        return [  # Like `Worker.serves`, without a call for each engine.
            worker.facts
            for worker in self.values()
            if worker.assigned == run_id == worker.report.run_id and not worker.drained
        ]

    def unleased(self, heartbeat: Heartbeat) -> list[tuple[Worker, InFlight]]:
        return [
            (worker, item)
            for report in heartbeat.engines
            if report.borrowed and (worker := self[report.engine_id]).lease_id is None
            for item in worker.in_flight.values()
            if item.lease_id is not None
        ]

    def stalled(self, now_ns: int) -> list[tuple[Worker, InFlight]]:
        """Return the turns that another engine with room would have completed by now."""
        running: dict[str, list[RunningTurn]] = {}
        for engine_id, worker in self.items():
            if worker.report.borrowed and worker.assigned is not None and worker.serves(worker.assigned):
                for item in worker.in_flight.values():
                    if (took_ns := now_ns - item.placed_ns) < STALLED_PACES * STALLED_MIN_NS:
                        break
                    if not item.taken_off:
                        turn = RunningTurn(item.request_id, engine_id, item.version_min, took_ns, item.kv_tokens)
                        running.setdefault(worker.assigned, []).append(turn)
        return [
            (worker := self[turn.engine_id], worker.in_flight[turn.request_id])
            for run_id, turns in running.items()
            for turn in stalled(turns, self.serving(run_id), now_ns)
        ]

    def lost(self, now_ns: int) -> list[InFlight]:
        """Return turns on engines whose reports are `LOST_NS` late. Forget idle engines that are `FORGET_NS` late."""
        for engine_id, worker in list(self.items()):
            if not worker.in_flight and worker.overdue_ns(now_ns) > FORGET_NS:
                del self[engine_id]
        return [item for worker, item in self.running() if worker.overdue_ns(now_ns) > LOST_NS]

    def youngest(self, engine_id: str, kv_tokens: int | None) -> list[InFlight]:
        newest_first = sorted(self[engine_id].in_flight.values(), key=lambda item: -item.placed_ns)
        if kv_tokens is None:
            return newest_first
        tokens_before = accumulate((item.kv_tokens for item in newest_first), initial=0)
        return [item for item, tokens in zip(newest_first, tokens_before, strict=False) if tokens < kv_tokens]
