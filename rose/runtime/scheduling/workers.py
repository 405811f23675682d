"""The worker table: which rollout engines there are, what runs on them, and when each was last heard of."""

from __future__ import annotations

from dataclasses import dataclass, field

from rose.runtime.policy.routing import WorkerFacts
from rose.runtime.scheduling.messages import EngineReport, Heartbeat

#: An engine whose agent has been silent for this long takes no new turns.
SILENCE_MAX_NS = 2_000_000_000


@dataclass(slots=True)
class InFlight:
    """A turn's request on an engine: its id there, and the KV slots it will hold at its longest."""

    request_id: str
    kv_tokens: int
    placed_ns: int


@dataclass(slots=True)
class Worker:
    report: EngineReport
    heard_ns: int
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    #: Set when a request to it failed; cleared by the next heartbeat that says it is alive.
    suspected: bool = False

    def facts(self, now_ns: int) -> WorkerFacts:
        since_ns = now_ns - self.heard_ns
        left_ns = self.report.lease_left_ns
        if self.report.borrowed:
            left_ns = 0 if left_ns is None else left_ns - since_ns
        return WorkerFacts(
            engine_id=self.report.engine_id,
            alive=self.report.alive and not self.suspected and since_ns < SILENCE_MAX_NS,
            policy_version=self.report.policy_version,
            in_flight=len(self.in_flight),
            capacity=self.report.capacity,
            lease_left_ns=left_ns,
            slack_ok=self.report.slack_ok,
        )


class WorkerTable:
    """All workers, by engine id."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}

    def __getitem__(self, engine_id: str) -> Worker:
        return self._workers[engine_id]

    def __contains__(self, engine_id: str) -> bool:
        return engine_id in self._workers

    def hear(self, heartbeat: Heartbeat, now_ns: int) -> None:
        for report in heartbeat.engines:
            worker = self._workers.get(report.engine_id)
            if worker is None:
                self._workers[report.engine_id] = Worker(report, now_ns)
            else:
                worker.report, worker.heard_ns = report, now_ns
                worker.suspected = worker.suspected and not report.alive

    def facts(self, now_ns: int) -> list[WorkerFacts]:
        return [worker.facts(now_ns) for worker in self._workers.values()]

    def youngest(self, engine_id: str, kv_tokens: int | None) -> list[InFlight]:
        """The requests to take off an engine: the youngest that together hold `kv_tokens`, or all."""
        newest_first = sorted(self._workers[engine_id].in_flight.values(), key=lambda item: -item.placed_ns)
        if kv_tokens is None:
            return newest_first
        chosen: list[InFlight] = []
        for item in newest_first:
            if sum(taken.kv_tokens for taken in chosen) >= kv_tokens:
                break
            chosen.append(item)
        return chosen
