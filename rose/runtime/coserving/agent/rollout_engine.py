"""Keeps a device's rollout engine running: takes up the one that runs or starts one, and starts it again after ever
longer if it died."""

from __future__ import annotations

import dataclasses
import http.client
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import psutil

from rose.clock import Anchor, monotonic_ns
from rose.errors import UserError
from rose.events import Engine, Event, Record, Sync
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.accounts.accountant import Accountant
from rose.runtime.coserving.accounts.slices import Assignments
from rose.runtime.coserving.agent.succession import kept_anchor, last_lease, predecessor
from rose.runtime.coserving.attach.attaching import has_engine
from rose.runtime.coserving.attach.attachment import Attachment, described
from rose.runtime.coserving.hooks.asking import question
from rose.runtime.coserving.leases.lease_file import LeaseFile
from rose.runtime.coserving.weights.drift import DriftGuard
from rose.runtime.coserving.weights.sync import EngineSync, Target, Via
from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import EngineRecord
from rose.runtime.engines.sglang import AddressInUseError, EngineError, EngineProcess, EngineSpec

if TYPE_CHECKING:
    from rose.runtime.coserving.agent.agent import AgentSpec


EngineAction = Literal["started", "activated", "deactivated", "stopped", "died", "attached", "detached", "refused"]


def rollout_event(
    spec: AgentSpec, action: EngineAction, pid: int | None, *, duration_ns: int | None = None, reason: str | None = None
) -> Engine:
    """A change in the life of the device's rollout engine."""
    engine = spec.rollout
    assert engine is not None, "a device without a rollout engine has no events of one"
    note = described(spec.page, "rollout") or Attachment(role="rollout", pid=0)
    return Engine(
        at_us=spec.anchor.now_us(),
        device_id=spec.device.id,
        engine_id=engine.engine_id,
        action=action,
        role="rollout",
        model=engine.model_name,
        pid=pid,
        # One that never came so far as to say what it is has none of these, whatever was asked of it.
        kv_bytes=note.kv_tokens * spec.rollout_kv_bytes_per_token or None,
        duration_ns=duration_ns,
        memory_mechanism=note.memory_mechanism or None,
        compute_mechanism=note.compute_mechanism or None,
        reason=reason,
    )


class EngineLives:
    """The device's rollout engine as the agent sees it, through as many lives as it has.

    `changed` is called when it can be used, or no more. `take_out` is called with a reason when its weights are not
    what they should be. `assigned` is told whose it is from when on. `via` gives the way to a target. `swaps` is how
    often weights were swapped into the engine, by its own count.
    """

    def __init__(
        self,
        spec: AgentSpec,
        accountant: Accountant,
        record: Record,
        *,
        assigned: Assignments,
        swaps: Callable[[], int],
        via: Via,
        changed: Callable[[], None],
        take_out: Callable[[str], None],
    ) -> None:
        self._spec, self._accountant, self._record = spec, accountant, record
        self._changed, self._take_out, self._swaps, self._assigned = changed, take_out, swaps, assigned
        self._via = via
        self._dead: str | None = "the rollout engine is being started"
        self.engine: EngineProcess | None = None
        self.sync: EngineSync | None = None
        self._guard: DriftGuard | None = None
        #: The last one that was made: also of an engine that is being taken up.
        self._newest: EngineSync | None = None
        self._given_up = False

    @property
    def fault(self) -> str | None:
        """Why no turn can run on the engine; None if one can."""
        if self._dead is not None:
            return self._dead
        if self.sync is not None and not self.sync.standing.trusted:
            return "the rollout engine holds other weights than were published"
        return None

    @property
    def failure(self) -> str | None:
        """Why its weights are no longer guarded, if they are not."""
        return None if self._guard is None else self._guard.failure

    @property
    def held(self) -> tuple[str, int] | None:
        """(run, version) that the engine holds; None while there is none that answers."""
        sync = self.sync
        return None if sync is None else sync.held

    def assign(self, run_ids: Mapping[str, str | None]) -> None:
        """The controller has said which run each engine is assigned to; one that it does not name stays with its run.

        It comes to another run as that run's weights do: turns of the one before leave it first.
        """
        rollout = self._spec.rollout
        if rollout is None or rollout.engine_id not in run_ids:
            return
        run_id, held = run_ids[rollout.engine_id], self.held
        if run_id is None or (held is not None and held[0] == run_id):
            self._assigned.change(monotonic_ns(), run_id or "")

    def bring_to(self, target: Target) -> Sync | None:
        """Bring the engine to a target and record it; None while there is no engine, which starts without it."""
        if (sync := self.sync) is None:
            return None
        # From here on it is this run's, also while it is brought there.
        self._assigned.change(monotonic_ns(), target.run_id)
        event = sync.bring(target)
        # The engine has its new weights; an event that cannot be written now waits in the writer's queue.
        self._record_sync(event)
        return event

    def locate(self, target: Target) -> None:
        """The engine is at a target, which is fetched there from now on."""
        if (sync := self.sync) is not None:
            sync.locate(target)

    def _record_sync(self, event: Event, *, durable: bool | None = None) -> None:
        """By the device's clock, as its leases are: a sync is charged to the lease that follows."""
        self._record(replace(event, at_us=self._spec.anchor.now_us()), durable=durable)

    def stop_guard(self) -> None:
        if self._guard is not None:
            self._guard.stop()

    # ------------------------------------------------------------------ told by the thread that keeps the engine

    def launched(self, engine: EngineProcess) -> None:
        self.engine = engine
        self._accountant.starts(monotonic_ns())

    def answers(self, engine: EngineProcess, duration_ns: int) -> None:
        self._accountant.started(monotonic_ns())
        self._record(rollout_event(self._spec, "started", engine.pid, duration_ns=duration_ns))
        self._begin(self._sync(engine))

    def adopted(self, engine: EngineProcess) -> str | None:
        sync = self._sync(engine)
        if (reason := sync.take_over(self._swaps())) is None:
            self.engine = engine
            if sync.standing.held:
                # An agent that ended as it brought the engine to another run did not say whose it is now.
                self._assigned.change(monotonic_ns(), sync.run_id)
            self._begin(sync)
        return reason

    def lost(self, pid: int, reason: str) -> None:
        self._record(rollout_event(self._spec, "died", pid, reason=reason))

    def given_up(self) -> None:
        self._given_up = True
        if (sync := self._newest) is not None:
            sync.give_up()

    def _sync(self, engine: EngineProcess) -> EngineSync:
        spec = self._spec
        sync = self._newest = EngineSync(engine, spec.staging, device_id=spec.device.id, via=self._via)
        if self._given_up:
            sync.give_up()
        return sync

    def _begin(self, sync: EngineSync) -> None:
        self.sync = sync
        audit_s = self._spec.coserving.drift_audit_s
        self._guard = DriftGuard(sync, audit_s, take_out=self._take_out, record=self._record_sync)
        self._guard.start()
        if self._given_up:
            self._guard.stop()
        self._dead = None
        self._changed()

    def ended(self, engine: EngineProcess, reason: str, *, died: bool = True) -> None:
        self._accountant.started(monotonic_ns())
        self.sync = None
        self._dead = why_away(reason, died=died)
        # The lease first: turns that were on it go on elsewhere.
        self._changed()
        self.stop_guard()
        self._guard = None
        self._record(rollout_event(self._spec, "died" if died else "stopped", engine.pid, reason=reason))


def end_without_agent(writer: LedgerWriter, page: Path, device_id: str) -> None:
    """End the lease that the device's last agent left open, if it did; `page` is where the device's page lies, or lay.

    Raises LedgerError, and UserError if the device is there still for the ledger: nobody accounts for its time.
    """
    root, run_id = writer.root, writer.run_id
    anchor = kept_anchor(page, run_id)
    # What the ledger says where both know the lease: when it expired by itself, which may be long ago.
    left = max(last_lease(root, run_id, device_id), LeaseFile(page, run_id).read(), key=lambda lease: lease.number)
    for event in left.completed(anchor):
        writer.record(event)
    if predecessor(root, run_id, device_id, anchor or Anchor.take()) is not None:
        raise UserError("its agents had ended before, and nobody accounts for its time since")


#: Wait before an engine that died is started again: the first, doubled with each death up to the last.
BACK_OFF_FIRST_S = 1.0
BACK_OFF_MAX_S = 60.0
#: An engine that lived for so long was sound: the next wait is the first one again.
SOUND_NS = 120_000_000_000
_LOOK_S = 0.1
#: A serving engine that is away for so long finds the memory of its GPU free when it starts.
AWAY_NS = 5_000_000_000
#: One that is to be taken up answers within this.
_ANSWER_S = 5.0
#: What an engine that dies as it is started, or a host that lacks something for it, makes of starting it.
_NOT_STARTED = (UserError, OSError, psutil.Error, http.client.HTTPException, ValueError)


def why_away(reason: str, *, died: bool) -> str:
    """Why no turn can run on an engine that has ended, for `reason`, until it is started again."""
    return f"the rollout engine {'died' if died else 'was ended'} ({reason}) and is started again"


class Lives(Protocol):
    """What is told of an engine's lives, from the thread that keeps it."""

    def launched(self, engine: EngineProcess) -> None:
        """It was launched, and does not answer yet."""

    def answers(self, engine: EngineProcess, duration_ns: int) -> None:
        """It answers, `duration_ns` after its launch."""

    def adopted(self, engine: EngineProcess) -> str | None:
        """It answers, and has run since before this agent. Returns why it is of no use, None if it is."""

    def ended(self, engine: EngineProcess, reason: str, *, died: bool = True) -> None:
        """It died, or could not be started, or was ended until there is room for it. Nothing of it is left."""

    def lost(self, pid: int, reason: str) -> None:
        """One that ran under an agent before this one has ended, or was ended since it could not be taken up."""

    def given_up(self) -> None:
        """It is to be left to another agent. Returns when nothing is asked of it any more."""


class RolloutEngine:
    """One engine at a time, in a thread that lives as long as it does: the kernel ties a process to that thread, unless
    its spec has it outlive its agent. Then the one on record is taken up, if it runs, is of that spec, and answers.

    `scheduling` says whether the engine's scheduler is there. SGLang's server goes on for seconds without it, answering
    nothing: an engine whose scheduler was there and is not any more has died.

    A serving engine sizes its pool by what is free as it starts. So on a lent GPU the engine is started once a serving
    engine is on the page, and ended when none was for a while.
    """

    def __init__(
        self,
        spec: EngineSpec,
        lives: Lives,
        make: Callable[[EngineSpec], EngineProcess] = EngineProcess,
        *,
        scheduling: Callable[[], bool] = lambda: False,
        persistent: bool = False,
    ) -> None:
        self._spec, self._lives, self._make, self._scheduling = spec, lives, make, scheduling
        self._persistent = persistent
        self._engine: EngineProcess | None = None
        #: Why no turn can run although the engine was not given up yet: what has no claim to a core takes long to end.
        self.dying: str | None = None
        #: Why it is kept no more, if nobody asked for that.
        self.failure: str | None = None
        self._first: EngineError | None = None
        #: Whether it answers, as far as is known: then it can be left.
        self._up = False
        #: Whether it was given another port since it last answered.
        self._moved = False
        self._began = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"engine-{spec.engine_id}", daemon=True)

    def start(self) -> None:
        """Return when the engine answers for the first time. Raises EngineError if it does not: then none is kept. One
        that is `persistent` is not waited for, and tried again."""
        self._thread.start()
        if self._persistent:
            return
        self._began.wait()
        if self._first is not None:
            raise self._first
        if self.failure is not None:
            raise EngineError(self.failure)

    def stop(self, *, leave: bool = False) -> bool:
        """Keep it no more, and end it, or `leave` it to the next agent; returns whether it was alive.

        Safe to call twice.
        """
        self._stopping.set()
        if leave:
            self._lives.given_up()
        engine = self._engine
        was_alive = engine is not None and engine.alive
        if engine is not None and not (leave and self._up and self._spec.orphan_s is not None):
            engine.stop()
        if self._thread.is_alive():
            self._thread.join()
        return was_alive

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:
            self.failure = f"keeping the rollout engine failed: {type(error).__name__}: {error}"
            raise
        finally:
            self._began.set()

    def _keep(self) -> None:
        back_off_s = BACK_OFF_FIRST_S
        adopted = self._adopt()
        while not self._stopping.is_set():
            if adopted is None and not self._has_room():
                self._stopping.wait(_LOOK_S)
                continue
            launched_ns = monotonic_ns()
            reason = self._live(launched_ns) if adopted is None else self._live_on(adopted, scheduled=True)
            adopted = None
            if self._first is not None:
                break
            if monotonic_ns() - launched_ns >= SOUND_NS:
                back_off_s = BACK_OFF_FIRST_S
            if reason is not None and not self._stopping.wait(back_off_s):
                back_off_s = min(2 * back_off_s, BACK_OFF_MAX_S)

    def _adopt(self) -> EngineProcess | None:
        """The engine that an agent before this one left, once it is told; what cannot be taken up is ended."""
        spec, page = self._spec, self._spec.plugin.page
        if spec.orphan_s is None or page is None or (record := EngineRecord.read(page)) is None:
            return None
        engine = self._make(dataclasses.replace(spec, port=record.port))
        reason = "it ended while it had no agent"
        if engine.adopt(record):
            # It did well without an agent: one that ends before it knows more leaves it, too.
            self._up = True
            self._engine = engine
            if (unfit := self._unfit(engine, record) or self._lives.adopted(engine)) is None:
                self._began.set()
                return engine
            if self._stopping.is_set():
                return None
            self._up = False
            reason = unfit
            engine.kill()
        adoption.record_path(page).unlink(missing_ok=True)
        self._lives.lost(record.pid, reason)
        return None

    def _unfit(self, engine: EngineProcess, record: EngineRecord) -> str | None:
        """Why an engine that runs is not taken up."""
        spec = self._spec
        if record.spec_sha256 != adoption.spec_sha256(spec):
            return "it was started as another one than is wanted now"
        if record.port != spec.port and not spec.any_port:
            return f"it listens on port {record.port}, not {spec.port}"
        if not self._scheduling():
            return "its scheduler is not on the device's page"
        try:
            # It ends nothing, and every scheduler that turns answers it at once.
            engine.post("/generate", question("end", "none"), timeout_s=_ANSWER_S)
            # An agent that was killed as it started the engine had not come to this.
            engine.settle()
        except (OSError, http.client.HTTPException, ValueError, psutil.Error) as error:
            return f"it does not answer ({error})"
        return None

    def _live(self, launched_ns: int) -> str | None:
        """One life of the engine; returns why it ended, None if it was stopped."""
        engine = self._engine = self._make(self._spec)
        self._lives.launched(engine)
        try:
            engine.launch()
            if self._stopping.is_set():
                engine.stop()
            engine.wait_ready()
            engine.settle()
        except _NOT_STARTED as error:
            return self._did_not_start(engine, error)
        # Before it is brought to its version, which takes a while.
        reason, scheduled = "the process ended", self._scheduling()
        self._lives.answers(engine, monotonic_ns() - launched_ns)
        self._began.set()
        self._moved = False
        return self._live_on(engine, scheduled=scheduled, reason=reason)

    def _did_not_start(self, engine: EngineProcess, error: Exception) -> str | None:
        """Returns what `_live` does."""
        if self._stopping.is_set():
            return None
        engine.kill()
        spec = self._spec
        elsewhere = spec.elsewhere() if isinstance(error, AddressInUseError) and not self._moved else None
        if isinstance(error, EngineError):
            reason = "it did not start" if elsewhere is None else f"its port {spec.port} was taken"
        else:
            # Of this its log says nothing.
            reason = f"it did not start: {type(error).__name__}: {error}"
            error = EngineError(f"engine {spec.engine_id} ({spec.model}): {reason}")
        self._lives.ended(engine, reason)
        if elsewhere is not None:
            self._spec, self._moved = elsewhere, True
        elif not self._began.is_set() and not self._persistent:
            self._first = error
        return reason

    def _live_on(self, engine: EngineProcess, *, scheduled: bool, reason: str = "the process ended") -> str | None:
        """What is left of a life once the engine answers."""
        self._up, died, room_ns = True, True, monotonic_ns()
        while engine.alive:
            if self._stopping.wait(_LOOK_S):
                return None
            before, scheduled = scheduled, self._scheduling()
            if before and not scheduled:
                reason = "its scheduler ended"
                break
            if self._has_room():
                room_ns = monotonic_ns()
            elif monotonic_ns() - room_ns >= AWAY_NS:
                reason, died = "no serving engine is on its GPU, and one that starts there comes first", False
                break
        if self._stopping.is_set():
            return None
        self._up = False
        self.dying = why_away(reason, died=died)
        # What else it started is not left behind.
        engine.kill()
        self._lives.ended(engine, reason, died=died)
        self.dying = None
        return reason

    def _has_room(self) -> bool:
        """Whether nobody is to have the device's memory before this engine."""
        spec = self._spec
        lent_gpu = spec.gpu is not None and spec.plugin.gated
        return not lent_gpu or spec.plugin.page is None or has_engine(spec.plugin.page)
