"""Assigns each engine to a run, by the rules of `rose.runtime.policy.sharing`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rose.runtime.policy.sharing import EngineFacts, RunFacts, assign, pause_ns, serve
from rose.runtime.scheduling.messages import Target
from rose.runtime.scheduling.runs.registry import Runs
from rose.runtime.scheduling.turns.turns import Turn
from rose.runtime.scheduling.workers import SILENCE_MAX_NS, InFlight, Worker, WorkerTable


class Assignment:
    def __init__(self, table: WorkerTable, runs: Runs, loads: defaultdict[str, Load]) -> None:
        self._table, self._runs, self._loads = table, runs, loads
        self.assigned: set[str | None] = set()
        self._served: dict[str, float] = {}
        self._served_ns: int | None = None

    def update(self, now_ns: int) -> list[tuple[Worker, InFlight]]:
        """Assign the engines again. Return the turns that must leave their engine."""
        runs = {
            run.run_id: RunFacts(
                run.run_id,
                self._loads[run.run_id].peak(now_ns),
                run.facts.weight,
                run.facts.priority,
                self._served.get(run.run_id, 0.0),
                run.facts.model,
                self._loads[run.run_id].quiet_ns(now_ns),
            )
            for run in self._runs
            if run.is_open and run.facts.version is not None
        }
        if not runs and all(worker.assigned is None for worker in self._table.values()):
            return []
        models = {run.model for run in runs.values()}
        engines = {
            engine_id: self._facts(worker, now_ns)
            for engine_id, worker in self._table.items()
            if self._usable(worker, models, now_ns)
        }
        self._serve(runs, engines.values(), now_ns)
        chosen = assign(engines.values(), runs.values(), now_ns)
        leaving: list[tuple[Worker, InFlight]] = []
        for engine_id, worker in self._table.items():
            assigned = worker.assigned if worker.assigned in runs else None  # An unusable engine keeps its run.
            run_id = chosen.get(engine_id) if engine_id in engines else assigned
            if run_id != worker.assigned:
                worker.assign(run_id, now_ns)
                leaving += [(worker, item) for item in worker.in_flight.values() if item.run_id != run_id]
        self.assigned = {worker.assigned for worker in self._table.values()}
        return leaving

    def targets(self, workers: Iterable[Worker]) -> dict[str, Target]:
        return {worker.report.engine_id: target for worker in workers if (target := self.target(worker)) is not None}

    def target(self, worker: Worker) -> Target | None:
        """Return the weights that the engine must load. Return None if it must load none now, for example because it
        still has turns of another run, or because its model must change first."""
        if worker.assigned is None or self._model(worker) is None or self.new_model(worker) is not None:
            return None
        return self._runs.get(worker.assigned).target

    def models(self, workers: Iterable[Worker]) -> dict[str, str]:
        return {worker.report.engine_id: model for worker in workers if (model := self._model(worker)) is not None}

    def new_model(self, worker: Worker) -> str | None:
        if worker.assigned is None or worker.report.model is None:
            return None
        model = self._runs.get(worker.assigned).facts.model
        return None if model == worker.report.model else model

    def _model(self, worker: Worker) -> str | None:
        if worker.assigned is None or worker.drained:
            return None
        if any(item.run_id != worker.assigned for item in worker.in_flight.values()):
            return None
        return self._runs.get(worker.assigned).facts.model

    def _facts(self, worker: Worker, now_ns: int) -> EngineFacts:
        report, model = worker.report, self.new_model(worker)
        if model == report.unstarted:
            model = None
        return EngineFacts(
            report.engine_id,
            report.capacity,
            worker.assigned or report.run_id,
            worker.assigned_ns,
            worker.switch_ns,
            worker.unable_ns(now_ns, self._version_min(worker)),
            model or report.model,
            worker.model_since_ns(now_ns) if model is None else now_ns,
            worker.start_ns,
            report.unstarted,
        )

    def _version_min(self, worker: Worker) -> int:
        return 0 if worker.assigned is None else self._runs.get(worker.assigned).version_min

    def _usable(self, worker: Worker, models: set[str | None], now_ns: int) -> bool:
        report = worker.report
        starts = self.new_model(worker) is not None if report.unstarted is None else models != {report.unstarted}
        return (
            (report.alive or starts)
            and report.capacity > 0
            and not worker.drained
            and worker.overdue_ns(now_ns) < SILENCE_MAX_NS
        )

    def _serve(self, runs: dict[str, RunFacts], engines: Collection[EngineFacts], now_ns: int) -> None:
        slots: defaultdict[str, int] = defaultdict(int)
        for engine in engines:
            run_id = self._table[engine.engine_id].assigned
            if run_id in runs and not engine.away and engine.unstarted != runs[run_id].model:
                slots[run_id] += engine.capacity
        elapsed_ns = 0 if self._served_ns is None else now_ns - self._served_ns
        paused_ns = pause_ns(engines, runs.values())
        self._served, self._served_ns = serve(self._served, slots, runs.values(), elapsed_ns, paused_ns), now_ns


PEAK_NS = 2_000_000_000  # A run counts with its peak of turns, since trajectories pause between turns.


@dataclass(slots=True)
class Load:
    """The open turns of one run, and its counters. Times are monotonic nanoseconds."""

    turns: set[Turn] = field(default_factory=set)
    expected_ns: int = 500_000_000  # Mean time of a turn.
    step: int | None = None
    completed: int = 0
    failed: int = 0
    tokens: int = 0
    attempts: Counter[str] = field(default_factory=Counter)
    _versions: Counter[int] = field(default_factory=Counter)
    _peak: int = 0
    _peak_until_ns: int = 0
    _busy_ns: int | None = None  # Last time with turns.

    @property
    def version_min(self) -> int:
        return min(self._versions, default=0)

    def renew(self, version_min: int) -> set[Turn]:
        """Raise the minimum version of turns to `version_min`, unless their request sets it. Return these turns."""
        older = (turn for turn in self.turns if turn.version_min < version_min)
        turns = {turn for turn in older if turn.request.labels.version_min is None}
        for turn in turns:
            self._leave_version(turn.version_min)
            turn.version_min = version_min
            self._versions[version_min] += 1
        return turns

    def begin(self, turn: Turn, now_ns: int) -> None:
        self.turns.add(turn)
        self._versions[turn.version_min] += 1
        self.step = turn.request.labels.step
        self.peak(now_ns)

    def end(self, turn: Turn) -> None:
        self.turns.discard(turn)
        self._leave_version(turn.version_min)

    def _leave_version(self, version: int) -> None:
        self._versions[version] -= 1
        if not self._versions[version]:
            del self._versions[version]

    def complete(self, turn: Turn) -> None:
        self.completed += 1
        self.tokens += turn.tokens.count
        self.expected_ns += int(0.1 * (turn.on_engines_ns - self.expected_ns))

    def quiet_ns(self, now_ns: int) -> int | None:
        return None if self._busy_ns is None else now_ns - self._busy_ns

    def peak(self, now_ns: int) -> int:
        if self.turns:
            self._busy_ns = now_ns
        if len(self.turns) >= self._peak or now_ns >= self._peak_until_ns:
            self._peak, self._peak_until_ns = len(self.turns), now_ns + PEAK_NS
        return self._peak
