"""Assigns engines to runs by `rose.runtime.policy.sharing`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rose.runtime.policy.sharing import EngineFacts, RunFacts, assign, serve
from rose.runtime.scheduling.engines.workers import SILENCE_MAX_NS, InFlight, Worker, WorkerTable
from rose.runtime.scheduling.messages import Target
from rose.runtime.scheduling.runs.registry import Runs
from rose.runtime.scheduling.turns.turns import Turn


class Assignment:
    """Assigns engines of the table to open runs. Times are monotonic nanoseconds."""

    def __init__(self, table: WorkerTable, runs: Runs, loads: defaultdict[str, Load]) -> None:
        self._table, self._runs, self._loads = table, runs, loads
        self.assigned: set[str | None] = set()
        self._served: dict[str, float] = {}
        self._served_ns: int | None = None

    def update(self, now_ns: int) -> list[tuple[Worker, InFlight]]:
        """Assign engines again; return the turns that must leave their engine."""
        runs = {
            run.run_id: RunFacts(
                run.run_id,
                self._loads[run.run_id].peak(now_ns),
                run.facts.weight,
                run.facts.priority,
                self._served.get(run.run_id, 0.0),
            )
            for run in self._runs
            if run.is_open and run.facts.version is not None
        }
        if not runs and all(worker.assigned is None for worker in self._table.values()):
            return []
        usable = [worker for worker in self._table.values() if _usable(worker, now_ns)]
        engines = [
            EngineFacts(
                worker.report.engine_id,
                worker.report.capacity,
                worker.assigned or worker.report.run_id,
                worker.assigned_ns,
                worker.switch_ns,
                worker.unlent_ns(now_ns),
            )
            for worker in usable
        ]
        self._serve(runs, engines, now_ns)
        chosen = assign(engines, runs.values(), now_ns)
        leaving: list[tuple[Worker, InFlight]] = []
        for worker in self._table.values():
            kept = worker.assigned if worker.assigned in runs else None  # An engine that is unusable now keeps its run.
            run_id = chosen.get(worker.report.engine_id) if _usable(worker, now_ns) else kept
            if run_id != worker.assigned:
                worker.assign(run_id, now_ns)
                leaving += [(worker, item) for item in worker.in_flight.values() if item.run_id != run_id]
        self.assigned = {worker.assigned for worker in self._table.values()}
        return leaving

    def targets(self, workers: Iterable[Worker]) -> dict[str, Target]:
        return {worker.report.engine_id: target for worker in workers if (target := self.target(worker)) is not None}

    def target(self, worker: Worker) -> Target | None:
        """Return the engine's target; None leaves it unchanged. Turns of other runs leave it first."""
        if worker.assigned is None or worker.drained:
            return None
        if any(item.run_id != worker.assigned for item in worker.in_flight.values()):
            return None
        return self._runs.get(worker.assigned).target

    def _serve(self, runs: dict[str, RunFacts], engines: list[EngineFacts], now_ns: int) -> None:
        weights = {run.run_id: run.weight for run in runs.values() if run.turns}
        slots: defaultdict[str, int] = defaultdict(int)
        for engine in engines:
            if (run_id := self._table[engine.engine_id].assigned) is not None and not engine.away:
                slots[run_id] += engine.capacity
        elapsed_ns = 0 if self._served_ns is None else now_ns - self._served_ns
        self._served, self._served_ns = serve(self._served, slots, weights, elapsed_ns), now_ns


def _usable(worker: Worker, now_ns: int) -> bool:
    return (
        worker.report.alive
        and worker.report.capacity > 0
        and not worker.drained
        and worker.overdue_ns(now_ns) < SILENCE_MAX_NS
    )


PEAK_NS = 2_000_000_000  # A run counts as having its recent peak of turns this long: trajectories pause between turns.


@dataclass(slots=True)
class Load:
    """The turns of one run. Times are monotonic nanoseconds."""

    turns: set[Turn] = field(default_factory=set)
    expected_ns: int = 500_000_000  # Time of a turn: guessed before the first turn, then averaged.
    step: int | None = None
    completed: int = 0
    failed: int = 0
    tokens: int = 0
    attempts: Counter[str] = field(default_factory=Counter)
    _versions: Counter[int] = field(default_factory=Counter)
    _peak: int = 0
    _peak_until_ns: int = 0

    @property
    def version_min(self) -> int:
        return min(self._versions, default=0)

    def begin(self, turn: Turn, now_ns: int) -> None:
        self.turns.add(turn)
        self._versions[turn.version_min] += 1
        self.step = turn.request.labels.step
        self.peak(now_ns)

    def end(self, turn: Turn) -> None:
        self.turns.discard(turn)
        self._versions[turn.version_min] -= 1
        if not self._versions[turn.version_min]:
            del self._versions[turn.version_min]

    def complete(self, turn: Turn) -> None:
        self.completed += 1
        self.tokens += turn.tokens.count
        self.expected_ns += int(0.1 * (turn.on_engines_ns - self.expected_ns))

    def peak(self, now_ns: int) -> int:
        if len(self.turns) >= self._peak or now_ns >= self._peak_until_ns:
            self._peak, self._peak_until_ns = len(self.turns), now_ns + PEAK_NS
        return self._peak
