"""Explains why a turn waits, and why a device is not lent."""

from collections.abc import Mapping

from rose.runtime.policy.lending import EngineState, LendingFacts, Reason, why_not_lent
from rose.runtime.scheduling.devices import Device
from rose.runtime.scheduling.engines.assignment import Assignment, Load
from rose.runtime.scheduling.runs.registry import Runs
from rose.runtime.scheduling.turns.turn_queue import TurnQueue
from rose.runtime.scheduling.turns.turns import Turn
from rose.runtime.scheduling.workers import SILENCE_MAX_NS, Worker, WorkerTable


class Obstacles:
    """Explains what keeps turns and devices waiting. `drained` maps each drained device to a reason. `loads` maps each
    run to its turns."""

    def __init__(
        self,
        workers: WorkerTable,
        runs: Runs,
        queue: TurnQueue,
        assignment: Assignment,
        loads: Mapping[str, Load],
        drained: Mapping[str, str | None],
    ) -> None:
        self._workers = workers
        self._runs = runs
        self._queue = queue
        self._assignment = assignment
        self._loads = loads
        self._drained = drained

    def why_waiting(self, turn: Turn) -> str:
        if self._runs.get(turn.run_id).facts.version is None:
            return f"run {turn.run_id!r} has published no version"
        if not len(self._workers):
            return "no engine has reported"
        if not (assigned := [worker for worker in self._workers.values() if worker.assigned == turn.run_id]):
            return f"no engine is assigned to its run{self._other_models(turn.run_id)}"
        if not (holders := [worker.report for worker in assigned if worker.serves(turn.run_id)]):
            changing = [text for worker in assigned if (text := self._changes(worker)) is not None]
            if len(changing) == len(assigned):
                return "; ".join(changing)
            failed = [
                f"{worker.report.engine_id}: {worker.report.failed}" for worker in assigned if worker.report.failed
            ]
            return "no engine has its run's weights yet" + (f" ({'; '.join(failed)})" if failed else "")
        if (newest := max(report.policy_version for report in holders)) < turn.version_min:
            return f"the newest version on an engine is {newest}, and the turn needs {turn.version_min}"
        if turn.error is not None:
            return "no attempt made a token"
        return "no suitable engine had room"

    def _other_models(self, run_id: str) -> str:
        """Return the end of a sentence, which names the models of the engines. It is empty if an engine has, or may
        have, the model of the run."""
        model = self._runs.get(run_id).facts.model
        engine_models = {worker.report.model for worker in self._workers.values()}
        if None in engine_models or model in engine_models:
            return ""
        return f": its model is {model!r}, and the engines have {', '.join(sorted(map(repr, engine_models)))}"

    def _changes(self, worker: Worker) -> str | None:
        if (model := self._assignment.new_model(worker)) is None:
            return None
        report = worker.report
        if report.unstarted == model:
            return f"engine {report.engine_id} cannot start with model {model!r}: {report.fault or 'unknown model'}"
        return f"engine {report.engine_id} changes from model {report.model!r} to {model!r}"

    def not_lent(self, device: Device, now_ns: int) -> Reason | None:
        """Return why no rollout can use the device, or None if a rollout can use it."""
        workers = [self._workers[engine_id] for engine_id in device.engine_ids if engine_id in self._workers]
        states = [self._state(worker) for worker in workers] or [None]
        reasons = [why_not_lent(self._facts(device, state, now_ns)) for state in states]
        return None if None in reasons else reasons[0]

    def _facts(self, device: Device, state: EngineState | None, now_ns: int) -> LendingFacts:
        overdue = now_ns - device.due_ns > SILENCE_MAX_NS
        return LendingFacts(
            engine=state,
            drained=device.device_id in self._drained,
            drain_reason=self._drained.get(device.device_id),
            silent_ns=now_ns - device.heard_ns if overdue else 0,
            refused=device.fault,
            serving_ns=device.serving_ns,
            observed_ns=device.observed_ns,
        )

    def _state(self, worker: Worker) -> EngineState | None:
        report, load = worker.report, self._loads.get(worker.assigned or "")
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
            turns=len(self._queue) if load is None else len(load.turns),
        )
