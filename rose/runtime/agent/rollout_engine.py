"""Keeps a rollout engine on a device: takes over a running engine or starts one. Waits longer after each failure."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from rose.clock import Anchor, monotonic_ns
from rose.errors import UserError
from rose.events import Engine, Record
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent.succession import kept_anchor, last_lease, predecessor
from rose.runtime.agent.weights.sync import EngineSync, Via
from rose.runtime.coserving.accounts.accountant import Accountant
from rose.runtime.coserving.accounts.slices import Assignments
from rose.runtime.coserving.attach.attaching import has_engine
from rose.runtime.coserving.attachment import Attachment, described
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.coserving.questions import question
from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import EngineRecord, is_ending
from rose.runtime.engines.sglang import AddressInUseError, EngineError, EngineProcess, EngineSpec

if TYPE_CHECKING:
    from rose.runtime.agent.agent import AgentSpec
    from rose.runtime.scheduling.messages import Terms

EngineAction = Literal["started", "activated", "deactivated", "stopped", "died", "attached", "detached", "refused"]

BACK_OFF_FIRST_S = 1.0  #: The first wait before a dead engine is restarted, doubled up to BACK_OFF_MAX_S.
BACK_OFF_MAX_S = 60.0
SOUND_NS = 120_000_000_000  #: An engine that lived this long was sound: the next wait is the first again.
_LOOK_S = 0.1
AWAY_NS = 5_000_000_000  # if serving is away for longer, the GPU's memory is freed for its next start
_ANSWER_S = 5.0  # an engine is only taken over if it answers within this time
#: Raised if an engine dies while it starts, or if the host lacks something that the engine needs.
_NOT_STARTED = (UserError, OSError, psutil.Error, http.client.HTTPException, ValueError)


def rollout_event(
    spec: AgentSpec, action: EngineAction, pid: int | None, *, duration_ns: int | None = None, reason: str | None = None
) -> Engine:
    note = described(spec.page, "rollout") or Attachment(role="rollout", pid=0)
    return engine_event(spec, note, action, pid, duration_ns=duration_ns, reason=reason)


def engine_event(
    spec: AgentSpec,
    note: Attachment,
    action: EngineAction,
    pid: int | None,
    *,
    duration_ns: int | None = None,
    reason: str | None = None,
) -> Engine:
    """Return an event of the engine that `note` describes."""
    engine_id, model = spec.serving_engine_id, note.model or spec.serving_model
    bytes_per_token = spec.serving_kv_bytes_per_token
    if note.role == "rollout":
        assert spec.rollout is not None, "a device without a rollout engine has no events of one"
        engine_id, model = spec.rollout.engine_id, spec.rollout.model_name
        bytes_per_token = spec.rollout_kv_bytes_per_token
    return Engine(
        at_us=spec.anchor.now_us(),
        device_id=spec.device.id,
        engine_id=engine_id,
        action=action,
        role=note.role,
        model=model,
        pid=pid,
        kv_bytes=note.kv_tokens * bytes_per_token or None,
        duration_ns=duration_ns,
        memory_mechanism=note.memory_mechanism or None,
        compute_mechanism=note.compute_mechanism or None,
        reason=reason,
    )


class RolloutEngine:
    """Keeps one rollout engine at a time, in a thread that lives as long as the engine. A former agent's engine is
    taken over if it has the same spec. On a lent GPU, a new engine waits until serving has started."""

    def __init__(
        self,
        spec: AgentSpec,
        page: ArbiterPage,
        accountant: Accountant,
        record: Record,
        *,
        assigned: Assignments,
        changed: Callable[[], None],
        via: Via,
        make: Callable[[EngineSpec], EngineProcess] = EngineProcess,
    ) -> None:
        self.spec, self._page, self._accountant, self._record = spec, page, accountant, record
        self._assigned, self._changed, self._via, self._make = assigned, changed, via, make
        self.model: str | None = None  # The last engine's model.
        self.unstarted: str | None = None  # A model that failed to start, or that this agent does not have.
        self.start_ns = 0  # How long the engine took to start; 0: unknown.
        self._wanted: str | None = None  # The model that the controller wants; None: any.
        self._run_id: str | None = None
        self.engine: EngineProcess | None = None
        self.sync: EngineSync | None = None
        self.failure: str | None = None
        self._away: str | None = "the rollout engine is being started"
        self._newest: EngineSync | None = None  # the newest sync; it may be of an engine that is being taken over
        self._up = False  # whether the engine answers; only then can it be left to the next agent
        self._leaving = False
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"engine-{self._engine_spec.engine_id}", daemon=True)

    @property
    def _engine_spec(self) -> EngineSpec:
        assert self.spec.rollout is not None, "the device is to have one"
        return self.spec.rollout

    @property
    def fault(self) -> str | None:
        if self._away is not None:
            return self._away
        if (sync := self.sync) is not None and not sync.standing.trusted:
            return "the rollout engine holds other weights than were published"
        return None

    @property
    def held(self) -> tuple[str, int] | None:
        return None if (sync := self.sync) is None else sync.held

    def assign(self, run_ids: Mapping[str, str | None], models: Mapping[str, str]) -> None:
        model = models.get(self._engine_spec.engine_id)
        if model in self.spec.models:
            self._wanted = model
        elif model is not None:
            self.unstarted = model
        if self._engine_spec.engine_id not in run_ids:
            return
        self._run_id = run_id = run_ids[self._engine_spec.engine_id]
        held = self.held
        if run_id is None or (held is not None and held[0] == run_id):
            self._assigned.change(monotonic_ns(), run_id or "")

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, leave: bool = False) -> bool:
        """End the engine, or `leave` it to the next agent. Return whether it was alive before. Safe to call twice."""
        self._leaving |= leave
        self._stopping.set()
        if leave and self._newest is not None:
            self._newest.give_up()
        engine = self.engine
        was_alive = engine is not None and engine.alive
        if engine is not None and not (leave and self._up and self._engine_spec.orphan_s is not None):
            engine.stop()
        if self._thread.is_alive():
            self._thread.join()
        return was_alive

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:
            self.failure = f"keeping the rollout engine failed: {type(error).__name__}: {error}"
            raise

    def _keep(self) -> None:
        back_off_s = BACK_OFF_FIRST_S
        adopted = self._adopt()
        while not self._stopping.is_set():
            if adopted is None and (model := self._new_model) is not None:
                self._become(model)
            if adopted is None and not self._has_room():
                self._stopping.wait(_LOOK_S)
                continue
            launched_ns = monotonic_ns()
            reason = self._live(launched_ns) if adopted is None else self._live_on(adopted, scheduled=True)
            adopted = None
            if monotonic_ns() - launched_ns >= SOUND_NS:
                back_off_s = BACK_OFF_FIRST_S
            if reason is not None and not self._stopping.wait(back_off_s):
                back_off_s = min(2 * back_off_s, BACK_OFF_MAX_S)

    def _adopt(self) -> EngineProcess | None:
        page = self._page.path
        if self._engine_spec.orphan_s is None or (record := EngineRecord.read(page)) is None:
            return None
        for name, other in self.spec.other_models.items():
            if adoption.spec_sha256(other) == record.spec_sha256:
                self._become(name)
        engine = self._make(replace(self._engine_spec, port=record.port))
        reason = "it ended while it had no agent"
        if engine.adopt(record):
            self._up = True  # It ran without an agent: an early end leaves it, too.
            self.engine = engine
            if (unfit := self._unfit(engine, record) or self._take_over(engine)) is None:
                return engine
            if self._stopping.is_set():
                return None
            self._up = False
            reason = unfit
            engine.kill()
        adoption.record_path(page).unlink(missing_ok=True)
        self._record(rollout_event(self.spec, "died", record.pid, reason=reason))
        return None

    def _unfit(self, engine: EngineProcess, record: EngineRecord) -> str | None:
        spec = self._engine_spec
        if record.spec_sha256 != adoption.spec_sha256(spec):
            return "engine arguments changed since it started"
        if record.port != spec.port and not spec.any_port:
            return f"it listens on port {record.port}, not {spec.port}"
        if not self._has_scheduler():
            return "its scheduler is not on the device's page"
        try:
            # This ends nothing, and every working scheduler answers it at once.
            engine.post("/generate", question("end", "none"), timeout_s=_ANSWER_S)
            engine.settle()  # An agent killed as it started the engine had not settled it.
        except (OSError, http.client.HTTPException, ValueError, psutil.Error) as error:
            return f"it does not answer ({error})"
        return None

    def _take_over(self, engine: EngineProcess) -> str | None:
        sync = self._new_sync(engine)
        if (reason := sync.take_over(self._page.get(Party.ROLLOUT, Field.SWAPS))) is None:
            if sync.standing.held:
                # A former agent that ended during a change of runs did not record the engine's new run.
                self._assigned.change(monotonic_ns(), sync.run_id)
            self._begin(sync)
        return reason

    def _new_sync(self, engine: EngineProcess) -> EngineSync:
        spec = self.spec
        sync = self._newest = EngineSync(engine, spec.staging, device_id=spec.device.id, via=self._via)
        if self._leaving:
            sync.give_up()
        return sync

    def _begin(self, sync: EngineSync) -> None:
        self.sync, self._away = sync, None
        self.model, self.unstarted = self._engine_spec.model_name, None
        self._changed()

    @property
    def _new_model(self) -> str | None:
        return None if self._wanted == self._engine_spec.model_name else self._wanted

    def take_over(self, terms: Terms) -> None:
        self._renew(lambda spec: spec.with_terms(terms))

    def _renew(self, change: Callable[[AgentSpec], AgentSpec]) -> None:
        with self._changing:
            self.spec = spec = change(self.spec)
            self._page.set_terms(spec.budgets, spec.max_prompt_tokens, spec.memory())

    def _become(self, model: str) -> None:
        self._renew(lambda spec: spec.with_model(model))
        if self._run_id is not None:
            self._assigned.change(monotonic_ns(), self._run_id)

    def _live(self, launched_ns: int) -> str | None:
        engine = self.engine = self._make(self._engine_spec)
        self._accountant.starts(launched_ns)
        try:
            engine.launch()
            if self._stopping.is_set():
                engine.stop()
            engine.wait_ready()
            engine.settle()
        except _NOT_STARTED as error:
            return self._did_not_start(engine, error)
        reason, scheduled = "the process ended", self._has_scheduler()
        self._accountant.started(monotonic_ns())
        self.start_ns = duration_ns = monotonic_ns() - launched_ns
        self._record(rollout_event(self.spec, "started", engine.pid, duration_ns=duration_ns))
        self._begin(self._new_sync(engine))
        return self._live_on(engine, scheduled=scheduled, reason=reason)

    def _did_not_start(self, engine: EngineProcess, error: Exception) -> str | None:
        if self._stopping.is_set():
            self._accountant.started(monotonic_ns())
            return None
        spec = self._engine_spec
        if isinstance(error, AddressInUseError) and (elsewhere := spec.elsewhere()) is not None:
            self._renew(lambda spec: replace(spec, rollout=elsewhere))
            reason = f"its port {spec.port} was taken"
        else:
            self.unstarted = spec.model_name
            why = "" if isinstance(error, EngineError) else f": {type(error).__name__}: {error}"
            reason = f"it did not start{why}"
        self._end(engine, reason)
        return reason

    def _live_on(self, engine: EngineProcess, *, scheduled: bool, reason: str = "the process ended") -> str | None:
        self._up, died, room_ns = True, True, monotonic_ns()
        while engine.alive:
            if self._stopping.wait(_LOOK_S):
                return None
            before, scheduled = scheduled, self._has_scheduler()
            if before and not scheduled:
                reason = "its scheduler ended"
                break
            if self._new_model is not None:
                reason, died = f"model {self._wanted!r} is wanted", False
                break
            if self._has_room():
                room_ns = monotonic_ns()
            elif monotonic_ns() - room_ns >= AWAY_NS:
                reason, died = "no serving engine is on its GPU, and one that starts there comes first", False
                break
        if self._stopping.is_set():
            return None
        self._up = False
        self._end(engine, reason, died=died)
        return reason if self._new_model is None else None

    def _end(self, engine: EngineProcess, reason: str, *, died: bool = True) -> None:
        self._away = f"the rollout engine {'died' if died else 'was ended'} ({reason}) and is started again"
        self.sync = None
        # The lease first: its turns continue elsewhere. A process without a claim to a core ends slowly.
        self._changed()
        engine.kill()
        self._accountant.started(monotonic_ns())
        self._record(rollout_event(self.spec, "died" if died else "stopped", engine.pid, reason=reason))

    def _has_scheduler(self) -> bool:
        page = self._page
        return page.alive(Party.ROLLOUT) and not is_ending(page.get(Party.ROLLOUT, Field.PID))

    def _has_room(self) -> bool:
        spec = self._engine_spec
        return spec.gpu is None or not spec.plugin.gated or has_engine(self._page.path)


def end_without_agent(writer: LedgerWriter, page: Path, device_id: str) -> None:
    """End the last agent's open lease. Raises LedgerError, or UserError if the device is still in the fleet."""
    root, run_id = writer.root, writer.run_id
    anchor = kept_anchor(page, run_id)
    if (end := last_lease(root, run_id, device_id).end(anchor)) is not None:
        writer.record(end)
    if predecessor(root, run_id, device_id, anchor or Anchor.take()) is not None:
        raise UserError("its agents had ended earlier, and its time after that is not recorded")
