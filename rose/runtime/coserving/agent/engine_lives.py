"""What the agent does as its rollout engine lives and dies: brings it to the wanted weights, guards them, records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rose.clock import monotonic_ns
from rose.events import Event, Record, Sync
from rose.runtime.coserving.accounts.accountant import Accountant
from rose.runtime.coserving.accounts.assignments import Assignments
from rose.runtime.coserving.agent.device_events import rollout_event
from rose.runtime.coserving.agent.rollout_engine import why_away
from rose.runtime.coserving.weights.drift import DriftGuard
from rose.runtime.coserving.weights.sync import EngineSync
from rose.runtime.coserving.weights.target import Target, Via
from rose.runtime.engines.sglang import EngineProcess

if TYPE_CHECKING:
    from rose.runtime.coserving.agent.agent import AgentSpec


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
