"""The controller, which assigns each engine to a run and each turn to an engine."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypedDict

from rose.clock import both_ns, monotonic_ns
from rose.errors import did_you_mean
from rose.ledger.writer import LedgerWriter
from rose.runtime.policy.policies import POLICIES
from rose.runtime.policy.routing import DemandFacts, wanted_ns
from rose.runtime.scheduling import messages
from rose.runtime.scheduling.devices import Demand, Devices, differs
from rose.runtime.scheduling.engines.assignment import Assignment, Load
from rose.runtime.scheduling.engines.engine_calls import EngineCalls
from rose.runtime.scheduling.messages import Heartbeat, HeartbeatReply, Terms
from rose.runtime.scheduling.obstacles import LOOK_NS, Holds, Obstacles
from rose.runtime.scheduling.refusals import RefusedError
from rose.runtime.scheduling.runs.answers import AnswerStore
from rose.runtime.scheduling.runs.recorder import Recorder
from rose.runtime.scheduling.runs.registry import Run, Runs
from rose.runtime.scheduling.runs.state import State, StateError
from rose.runtime.scheduling.turn_service import TurnService
from rose.runtime.scheduling.turns.turn_queue import TurnQueue
from rose.runtime.scheduling.turns.turns import Trajectories
from rose.runtime.scheduling.workers import InFlight, Worker, WorkerTable
from rose.transfer.wire.origin_rules import STRICT, OriginRules

TICK_S, CALM_TICK_S = 0.1, 0.25  # Seconds between calls of `pass_time` with waiting turns, and without.


class ControllerOptions(TypedDict, total=False):
    models: Sequence[str]
    state: Path | None
    writer: LedgerWriter | None
    fleet_run_id: str | None
    devices: Mapping[str, str] | None
    origins: OriginRules


class Controller:
    """The state and decisions of the controller, on one asyncio loop. Raises StateError for bad state on disk."""

    def __init__(
        self,
        policy: str = "rose",
        *,
        models: Sequence[str] = (),
        state: Path | None = None,
        writer: LedgerWriter | None = None,
        fleet_run_id: str | None = None,
        devices: Mapping[str, str] | None = None,
        origins: OriginRules = STRICT,
    ) -> None:
        now_ns = monotonic_ns()
        self.policy, self.models, self.fleet_run_id = policy, models, fleet_run_id
        self.workers = WorkerTable()
        self.devices = Devices(devices)
        with ExitStack() as stack:
            self.state = State(state)
            stack.callback(self.state.close)
            self.answers = AnswerStore(state)
            stack.callback(self.answers.close)
            self.recorder = Recorder(writer, self.state, fleet_run_id)
            self.runs = Runs(self.state, now_ns, models=models, fleet_run_id=fleet_run_id, origins=origins)
            self.drained = self.state.drained()
            stack.pop_all()
        self._holds = Holds(self.recorder.note)
        self.read_terms: Callable[[], Mapping[str, Terms]] = dict  # By device; without an entry: as started.
        self._terms: Mapping[str, Terms] = {}
        self.ray_fault: Callable[[], str | None] = lambda: None  # Why Ray restarts no parts.
        self.loads: defaultdict[str, Load] = defaultdict(Load)
        for run_id, (completed, tokens) in self.answers.counts().items():
            self.loads[run_id] = Load(completed=completed, tokens=tokens)
        self.trajectories = Trajectories()
        self.queue = TurnQueue(self.workers, self.trajectories, POLICIES[policy].place)
        self.assignment = Assignment(self.workers, self.runs, self.loads)
        self.obstacles = Obstacles(self.workers, self.runs, self.queue, self.assignment, self.loads, self.drained)
        self._demand = Demand()
        self.wanted = self._announced = HeartbeatReply()
        self._news = asyncio.Event()
        self._engines = EngineCalls()
        stores, why = (self.answers, self.recorder), self.obstacles.why_waiting
        self.turns = TurnService(self._engines, self.queue, self.trajectories, *stores, self.moved, why)
        self._ticking: asyncio.Task[None] | None = None
        self._stopping = False
        self._passed_ns = now_ns

    async def start(self) -> None:
        self.recorder.catch_up(self.answers.events_json())
        self._terms = self.read_terms()
        self._passed_ns = monotonic_ns()
        self._ticking = asyncio.create_task(self._tick())

    def release_polls(self) -> None:
        self._stopping = True
        self.tell()

    async def stop(self) -> None:
        self.release_polls()
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
            self._holds.look({}, monotonic_ns())
        await self.turns.close()
        await self._engines.close()
        await self.recorder.close()
        self.answers.close()
        self.state.close()

    def open_run(self, request: messages.OpenRun) -> Run:
        device_id, names = request.trainer_device, self._device_ids()
        if device_id is not None and self.devices.expected and device_id not in names:
            raise RefusedError(409, f"unknown trainer_device {device_id!r}{did_you_mean(device_id, names)}")
        run = self.runs.open(request, monotonic_ns())
        self._changed()
        return run

    def publish(self, run_id: str, request: messages.PublishVersion, client_address: str | None) -> Run:
        run = self.runs.publish(run_id, request, monotonic_ns(), self.devices.hosts, client_address)
        self.queue.renew(run_id, self.loads[run_id].renew(run.version_min), run.version_min)
        self._changed()
        return run

    async def record(self, run_id: str, request: messages.RunEvents) -> None:
        """Record the events of a client: all, or none if one is refused. Raises RequestError."""
        run = self.runs.hear(run_id, monotonic_ns(), request.fence)
        step = await self.recorder.record(run_id, request.events)
        if step is not None:
            self.runs.reach_step(run, step)

    def close_run(self, run_id: str, request: messages.CloseRun) -> Run:
        run = self.runs.close(run_id, request.fence, request.outcome, request.reason)
        self.queue.paused.discard(run_id)
        self.end_turns(run_id, f"run {run_id!r} is {run.facts.state}")
        self._changed()
        return run

    def end_turns(self, run_id: str, why: str) -> None:
        for turn in self.loads[run_id].turns:
            turn.ended = why
        self.queue.end(run_id)
        self._take_off(pair for pair in self.workers.running() if pair[1].run_id == run_id)

    def pause(self, run_id: str) -> None:
        self.runs.hear(run_id, monotonic_ns())
        self.queue.paused.add(run_id)
        self._take_off(pair for pair in self.workers.running() if pair[1].run_id == run_id)

    def resume(self, run_id: str) -> None:
        self.runs.hear(run_id, monotonic_ns())
        self.queue.paused.discard(run_id)
        self.queue.dispatch(monotonic_ns())

    def abort(self, run_id: str, name: str | None = None) -> int:
        """End the run's turns whose name is `name` (None: all turns). Return the number of ended turns."""
        self.runs.hear(run_id, monotonic_ns())
        turns = [turn for turn in self.loads[run_id].turns if name in (None, turn.name)]
        for turn in turns:
            turn.aborted, turn.ended = True, "the client aborted it"
        self.queue.end(run_id)
        self._take_off(turn.placed for turn in turns if turn.placed is not None)
        return len(turns)

    def _take_off(self, turns: Iterable[tuple[Worker, InFlight]]) -> None:
        for worker, item in turns:
            if not item.taken_off:
                self._engines.take_off_later(worker, item)

    def _changed(self) -> None:
        self._forget()
        self.recorder.record_due()
        self.pass_time(monotonic_ns())
        self.tell()

    def _forget(self) -> None:
        for run_id in self.runs.forget():
            self.loads.pop(run_id, None)
            self.answers.forget_count(run_id)

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Return the device's instructions once they change, or after `hold_s` seconds. Raises RefusedError."""
        now, utc_ns = both_ns()
        deadline = now + int(heartbeat.hold_s * 1e9)
        device = self.devices.hear(heartbeat, now, utc_ns)
        if (clock := device.clock_news()) is not None:
            self.recorder.note(clock)
        self.workers.hear(heartbeat, now)
        self._adopt(heartbeat, now)
        self._take_off(self.workers.unleased(heartbeat))
        self.queue.dispatch(now)
        self._assess(now)
        try:
            while not device.lacks(self._reply(heartbeat), heartbeat.seen):
                if (left_s := (deadline - monotonic_ns()) / 1e9) <= 0 or self._stopping:
                    break
                try:
                    await asyncio.wait_for(self._news.wait(), left_s)
                except TimeoutError:
                    break
        finally:
            self.workers.answered(heartbeat, monotonic_ns())
        return device.answer(self._reply(heartbeat), heartbeat.seen)

    def _adopt(self, heartbeat: Heartbeat, now_ns: int) -> None:
        drained = heartbeat.device_id in self.drained
        live = {run.run_id for run in self.runs if run.is_open}
        for report in heartbeat.engines:
            worker = self.workers[report.engine_id]
            worker.drained = drained
            if worker.assigned is None and worker.assigned_ns == 0 and report.run_id in live:
                worker.assign(report.run_id, now_ns)

    def _reply(self, heartbeat: Heartbeat) -> HeartbeatReply:
        workers = [self.workers[report.engine_id] for report in heartbeat.engines]
        run_ids = {worker.report.engine_id: worker.assigned for worker in workers}
        wanted_ns = {name: self.wanted.wanted_ns[name] for name in run_ids if name in self.wanted.wanted_ns}
        steps = [self.loads[run_id].step for name in wanted_ns if (run_id := run_ids[name]) is not None]
        trainer = self.runs.trainer_of(heartbeat.device_id)
        return HeartbeatReply(
            renew=[lease_id for name in wanted_ns if (lease_id := self.workers[name].lease_id) is not None],
            wanted_ns=wanted_ns,
            step=steps[-1] if steps else None,
            targets=self.assignment.targets(workers),
            drained=heartbeat.device_id in self.drained,
            train_run_id=None if trainer is None else trainer.run_id,
            rollout_run_ids=run_ids,
            models=self.assignment.models(workers),
            terms=self._terms.get(heartbeat.device_id),
        )

    async def preempt(self, request: messages.PreemptRequest) -> messages.PreemptReply:
        if request.engine_id not in self.workers:
            raise RefusedError(404, f"unknown engine {request.engine_id!r}")
        worker = self.workers[request.engine_id]
        if request.kv_tokens is None:
            worker.withdraw()
        chosen = self.workers.youngest(request.engine_id, request.kv_tokens)
        await self._engines.take_off(worker, chosen)
        return messages.PreemptReply(requests=len(chosen), kv_tokens=sum(item.kv_tokens for item in chosen))

    def drain(self, device_id: str | None, reason: str | None) -> list[str]:
        """Stop lending a device (None: all devices) until `undrain`, also after a restart. Raises RefusedError."""
        devices = self._chosen(device_id)
        self.state.drain(devices, reason)
        self.drained |= dict.fromkeys(devices, reason)
        self._drains_changed()
        return devices

    def undrain(self, device_id: str | None) -> list[str]:
        devices = [name for name in self._chosen(device_id) if name in self.drained]
        self.state.undrain(devices)
        for name in devices:
            del self.drained[name]
        self._drains_changed()
        return devices

    def reload(self) -> None:
        self._terms = self.read_terms()
        self.tell()

    def _device_ids(self) -> set[str]:
        return self.devices.keys() | self.drained.keys() | self.devices.expected.keys()

    def _chosen(self, device_id: str | None) -> list[str]:
        names = self._device_ids()
        if device_id is None:
            return sorted(names)
        if device_id not in names:
            raise RefusedError(404, f"unknown device {device_id!r}{did_you_mean(device_id, names)}")
        return [device_id]

    def _drains_changed(self) -> None:
        for worker in self.workers.values():
            worker.drained = worker.report.device_id in self.drained
        self._take_off(pair for pair in self.workers.running() if pair[0].drained)
        self.pass_time(monotonic_ns())
        self.tell()

    def moved(self, run_id: str) -> None:
        if run_id not in self.assignment.assigned:
            self._take_off(self.assignment.update(monotonic_ns()))
        if not self.wanted.wanted_ns:
            self._assess(monotonic_ns())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S if len(self.queue) else CALM_TICK_S)
            self.pass_time(monotonic_ns())

    def pass_time(self, now_ns: int) -> None:
        # A slow disk may have stalled this process.
        late_ns, self._passed_ns = now_ns - self._passed_ns - round(CALM_TICK_S * 1e9), now_ns
        excuse(late_ns, now_ns, self.workers, self.devices, self.runs)
        for run_id, load in self.loads.items():
            if load.turns:
                self.runs.get(run_id).heard_ns = now_ns  # Its client holds a connection open.
        with suppress(StateError):  # Such a run expires once the disk accepts writes.
            if self.runs.expire(now_ns):
                self._forget()
                self.recorder.record_due()
                self.tell()
        self.recorder.record_turns()
        self.devices.forget(now_ns)
        for item in self.workers.lost(now_ns):
            item.give_up()
        self._take_off(self.assignment.update(now_ns))
        self.queue.dispatch(now_ns)
        if not len(self.queue):  # Stalled turns move only to idle engines.
            self._take_off(self.workers.stalled(now_ns))
        self._assess(now_ns)
        if now_ns - self._holds.looked_ns >= LOOK_NS:
            self._look_for_holds(now_ns)

    def _look_for_holds(self, now_ns: int) -> None:
        unlent = {
            engine_id: (worker, reason)
            for device in (self.devices.values() if len(self.queue) else ())
            for engine_id in device.engine_ids
            if (worker := self.workers.get(engine_id)) is not None
            and worker.report.borrowed
            and worker.lease_id is None
            and (reason := self.obstacles.not_lent(device, now_ns)) is not None
        }
        self._holds.look(unlent, now_ns)

    def _assess(self, now_ns: int) -> None:
        engines_ns: dict[str, int] = {}
        for run_id, load in self.loads.items():
            if load.turns:
                facts = DemandFacts(
                    turns=len(load.turns),
                    turn_ns=load.expected_ns,
                    follow_share=self.trajectories.follow_share,
                    version_min=load.version_min,
                    waited_ns=self.queue.waited_ns(run_id, now_ns),
                )
                engines_ns |= wanted_ns(facts, self.workers.serving(run_id), now_ns)
        self.wanted = HeartbeatReply.model_construct(  # Unchecked: a fleet may have more engines than a device.
            wanted_ns=self._demand.assess(engines_ns, now_ns),
            targets=self.assignment.targets(self.workers.values()),
            models=self.assignment.models(self.workers.values()),
        )
        if differs(self.wanted, self._announced):
            self._announced = self.wanted
            self.tell()

    def tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def excused_ns(at_ns: int, late_ns: int, now_ns: int) -> int:
    return max(at_ns, min(at_ns + late_ns, now_ns))


def excuse(late_ns: int, now_ns: int, workers: WorkerTable, devices: Devices, runs: Runs) -> None:
    """If this process stalled for over 1 s, extend the deadlines of agents and runs by `late_ns`, but not leases."""
    if late_ns <= 1_000_000_000:
        return
    for worker in workers.values():
        worker.expect(excused_ns(worker.due_ns, late_ns, now_ns))
    for device in devices.values():
        device.due_ns = excused_ns(device.due_ns, late_ns, now_ns)
    for run in runs:
        run.heard_ns = excused_ns(run.heard_ns, late_ns, now_ns)
