"""Explains why a turn waits, and why a device is not lent. Records `hold` events while it is not lent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rose.events import Hold
from rose.runtime.policy.lending import EngineState, LendingFacts, Reason, why_not_lent
from rose.runtime.scheduling.devices import Device
from rose.runtime.scheduling.engines.assignment import Assignment, Load
from rose.runtime.scheduling.runs.registry import Runs
from rose.runtime.scheduling.turns.turn_queue import TurnQueue
from rose.runtime.scheduling.turns.turns import Turn
from rose.runtime.scheduling.workers import SILENCE_MAX_NS, Worker, WorkerTable

LOOK_NS = 1_000_000_000
HOLD_NS = 10_000_000_000  # Longer holds are recorded in parts.
#: Turns of other runs wait, or the agent records the hold.
_ELSEWHERE = ("no_demand", "withheld")


@dataclass(frozen=True, slots=True)
class Obstacles:
    workers: WorkerTable
    runs: Runs
    queue: TurnQueue
    assignment: Assignment
    loads: Mapping[str, Load]
    drained: Mapping[str, str | None]  # By drained device: the reason.

    def why_waiting(self, turn: Turn) -> str:
        if self.runs.get(turn.run_id).facts.version is None:
            return f"run {turn.run_id!r} has published no version"
        if not len(self.workers):
            return "no engine has reported"
        if not (assigned := [worker for worker in self.workers.values() if worker.assigned == turn.run_id]):
            return f"no engine is assigned to its run{self._other_models(turn.run_id)}"
        if not (holders := [worker.report for worker in assigned if worker.serves(turn.run_id)]):
            changing = [text for worker in assigned if (text := self._changes(worker)) is not None]
            if len(changing) == len(assigned):
                return "; ".join(changing)
            reports = (worker.report for worker in assigned)
            failed = [f"{report.engine_id}: {report.failed}" for report in reports if report.failed]
            return "no engine has its run's weights yet" + (f" ({'; '.join(failed)})" if failed else "")
        if (newest := max(report.policy_version for report in holders)) < turn.version_min:
            return f"the newest version on an engine is {newest}, and the turn needs {turn.version_min}"
        if turn.error is not None:
            return "no attempt made a token"
        return "no suitable engine had room"

    def _other_models(self, run_id: str) -> str:
        model = self.runs.get(run_id).facts.model
        engine_models = {worker.report.model for worker in self.workers.values()}
        if None in engine_models or model in engine_models:
            return ""
        return f": its model is {model!r}, and the engines have {', '.join(sorted(map(repr, engine_models)))}"

    def _changes(self, worker: Worker) -> str | None:
        if (model := self.assignment.new_model(worker)) is None:
            return None
        report = worker.report
        if report.unstarted == model:
            return f"engine {report.engine_id} cannot start with model {model!r}: {report.fault or 'unknown model'}"
        return f"engine {report.engine_id} changes from model {report.model!r} to {model!r}"

    def not_lent(self, device: Device, now_ns: int) -> Reason | None:
        workers = [self.workers[engine_id] for engine_id in device.engine_ids if engine_id in self.workers]
        states = [self._state(worker) for worker in workers] or [None]
        reasons = [why_not_lent(self._facts(device, state, now_ns)) for state in states]
        return None if None in reasons else reasons[0]

    def _facts(self, device: Device, state: EngineState | None, now_ns: int) -> LendingFacts:
        overdue = now_ns - device.due_ns > SILENCE_MAX_NS
        return LendingFacts(
            engine=state,
            drained=device.device_id in self.drained,
            drain_reason=self.drained.get(device.device_id),
            silent_ns=now_ns - device.heard_ns if overdue else 0,
            refused=device.fault,
            serving_ns=device.serving_ns,
            observed_ns=device.observed_ns,
        )

    def _state(self, worker: Worker) -> EngineState | None:
        report, load = worker.report, self.loads.get(worker.assigned or "")
        alive = report.alive and not worker.suspected
        return EngineState(
            engine_id=report.engine_id,
            borrowed=report.borrowed,
            leased=worker.lease_id is not None,
            works=report.slack_ok,
            fault=None if alive else report.fault or f"engine {report.engine_id} is not alive",
            start=self._changes(worker),
            failed=report.failed,
            run_id=worker.assigned,
            held_run_id=report.run_id,
            version=report.policy_version,
            version_min=0 if load is None else load.version_min,
            turns=len(self.queue) if load is None else len(load.turns),
        )


class Holds:
    def __init__(self, record: Callable[[Hold], None]) -> None:
        self._record = record
        self._open: dict[str, tuple[Hold, int]] = {}  # By engine: its hold, and the start in monotonic nanoseconds.
        self.looked_ns = 0

    def look(self, unlent: Mapping[str, tuple[Worker, Reason]], now_ns: int) -> None:
        self.looked_ns = now_ns
        for engine_id, (hold, since_ns) in list(self._open.items()):
            worker, reason = unlent.get(engine_id, (None, None))
            if worker is None or reason is None or (worker.assigned, reason.name) != (hold.rl_run_id, hold.reason):
                self._end(engine_id, now_ns)
                continue
            self._open[engine_id] = replace(hold, explanation=reason.text), since_ns  # The text has newer figures.
            if now_ns - since_ns >= HOLD_NS:
                self._end(engine_id, now_ns)
        for engine_id, (worker, reason) in unlent.items():
            if reason.name not in _ELSEWHERE and engine_id not in self._open:
                hold = Hold(
                    device_id=worker.report.device_id,
                    engine_id=engine_id,
                    reason=reason.name,
                    explanation=reason.text,
                    count=1,
                    duration_ns=0,
                    rl_run_id=worker.assigned,
                )
                self._open[engine_id] = hold, now_ns

    def _end(self, engine_id: str, now_ns: int) -> None:
        hold, since_ns = self._open.pop(engine_id)
        self._record(replace(hold, duration_ns=now_ns - since_ns))
