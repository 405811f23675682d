"""What the ledger is told of a device and the engines on it, beside leases and syncs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from rose.events import Device, Engine, Record, StepTime
from rose.runtime.coserving.attach.attachment import Attachment, described
from rose.runtime.coserving.kv.activation import Move
from rose.runtime.coserving.meter.hardware import elsewhere
from rose.runtime.coserving.page import ArbiterPage, Field, Party, SpanRecord

if TYPE_CHECKING:
    from rose.runtime.coserving.agent.agent import AgentSpec

Role = Literal["serving", "rollout"]
EngineAction = Literal["started", "activated", "deactivated", "stopped", "died", "attached", "detached", "refused"]
_PARTIES: dict[Role, Party] = {"serving": Party.SERVING, "rollout": Party.ROLLOUT}
_PPM = 1e6
#: After so many looks an engine is recorded without the note that it never left.
_LOOKS_FOR_NOTE = 20


def record_device(
    record: Record, spec: AgentSpec, action: Literal["joined", "left"], at_ns: int, hardware_id: str
) -> None:
    """The device joined or left the fleet at `at_ns`, monotonic."""
    device = spec.device
    record(
        Device(
            at_us=spec.anchor.utc_us(at_ns),
            device_id=device.id,
            action=action,
            t_ns=spec.anchor.utc_ns(at_ns),
            pool=device.pool,
            device_class=device.device_class,
            memory_bytes=device.kv_bytes,
            hardware_id=hardware_id,
        )
    )


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


def moved_event(spec: AgentSpec, span: SpanRecord, lease_id: str | None, pid: int | None) -> Engine:
    """The rollout engine's memory came to the device or left it; `lease_id` is the lease that it was for."""
    move = Move.from_aux(span.aux)
    action: EngineAction = "deactivated" if move.away else "activated"
    event = rollout_event(spec, action, pid, duration_ns=span.end_ns - span.start_ns)
    reason = None
    if move.weights_alone:
        lease_id, reason = None, "the weights alone, for a sync"
    elif event.memory_mechanism == "remap":
        reason = "the KV pool alone"
    elif spec.device.gpu is None:
        reason = "the KV pool alone: weights are the host's memory" + ("" if move.away else ", and pages come with use")
    return dataclasses.replace(
        event,
        at_us=spec.anchor.utc_us(span.start_ns),
        lease_id=lease_id,
        reason=reason,
        moved_bytes=move.moved_bytes,
    )


class ServingWatch:
    """Sees the serving engine come to the page and leave it. It belongs to its owner: nothing is done to it."""

    def __init__(self, spec: AgentSpec, page: ArbiterPage, record: Record) -> None:
        self._spec, self._page, self._record = spec, page, record
        #: The one that is attached, as the ledger was told of it.
        self._attached: Attachment | None = None
        #: The last one that found the page and did not take it, or could not keep it, as the ledger was told of it.
        self._refused: Attachment | None = None
        #: How often one was seen that has not said anything of itself yet, and its pid.
        self._looks, self._looked_at = 0, 0
        #: Whether it had something to do when it was last seen.
        self._busy = False

    @property
    def fault(self) -> str | None:
        """Why no serving engine can be shared with; None while one is attached."""
        if not self._page.alive(Party.SERVING):
            description = described(self._spec.page, "serving")
            if description is not None and description.refused is not None:
                return f"nothing is lent beside the serving engine, pid {description.pid}: {description.refused}"
            return "no serving engine is attached to the device's page"
        if self._page.get(Party.SERVING, Field.BROKEN):
            return "ROSE's hooks in the serving engine failed; its log says why"
        if self._attached is not None and self._attached.refused is not None:
            return f"nothing is lent beside the serving engine: {self._attached.refused}"
        return None

    def look(self) -> None:
        """Record what changed since the last look."""
        attached = self._attached
        if not self._page.alive(Party.SERVING):
            if attached is not None:
                self._leave(attached)
            self._note_refusal()
            return
        pid = self._page.get(Party.SERVING, Field.PID)
        if attached is not None and attached.pid != pid:
            self._leave(attached)
            attached = None
        if attached is None:
            self._meet(pid)
        load = self._page.serving_load()
        self._busy = load is not None and (load.wanted or load.waiting > 0 or load.running > 0)

    def close(self, reason: str) -> None:
        """The agent looks no more."""
        if self._attached is not None:
            self._tell("detached", self._attached, reason)
            self._attached = None

    def _meet(self, pid: int) -> None:
        description = described(self._spec.page, "serving")
        # What an engine before this one said is not about this one, whose own words come a moment after it.
        own = description if description is not None and description.pid == pid else None
        self._looks = self._looks + 1 if pid == self._looked_at else 1
        self._looked_at = pid
        if own is not None or self._looks >= _LOOKS_FOR_NOTE:
            met = own or Attachment(role="serving", pid=pid)
            refused = met.refused or elsewhere(self._spec.device, self._spec.page, pid)
            self._attached = dataclasses.replace(met, refused=refused)
            self._tell("attached", self._attached, self._attached.refused)

    def _leave(self, attached: Attachment) -> None:
        self._attached, self._looks = None, 0
        busy, self._busy = self._busy, False
        description = described(self._spec.page, "serving")
        if description is not None and description.pid == attached.pid and description.refused is not None:
            # It goes on serving without the plugin.
            self._refused = description
            self._tell("detached", attached, description.refused)
        else:
            # Nobody stops a server in the middle of a request if he can help it.
            self._tell("died" if busy else "detached", attached, "it was serving requests" if busy else None)

    def _note_refusal(self) -> None:
        description = described(self._spec.page, "serving")
        if description is not None and description.refused is not None and description != self._refused:
            self._refused = description
            self._tell("refused", description, description.refused)

    def _tell(self, action: EngineAction, attached: Attachment, reason: str | None) -> None:
        spec = self._spec
        self._record(
            Engine(
                at_us=spec.anchor.now_us(),
                device_id=spec.device.id,
                engine_id=spec.serving_engine_id or f"{spec.device.id}-serving",
                action=action,
                role="serving",
                model=attached.model or spec.serving_model,
                pid=attached.pid,
                kv_bytes=attached.kv_tokens * spec.serving_kv_bytes_per_token or None,
                memory_mechanism=attached.memory_mechanism or None,
                compute_mechanism=attached.compute_mechanism or None,
                reason=reason,
            )
        )


class StepTimeWatch:
    """Tells how well the engines of a device predict their steps."""

    def __init__(self, spec: AgentSpec, page: ArbiterPage, record: Record) -> None:
        self._page, self._record, self._device_id, self._anchor = page, record, spec.device.id, spec.anchor
        self._engine_ids: dict[Role, str | None] = {
            "serving": spec.serving_engine_id,
            "rollout": None if spec.rollout is None else spec.rollout.engine_id,
        }
        self._steps: dict[Role, int] = dict.fromkeys(_PARTIES, 0)

    def tell(self) -> None:
        """Record the errors of every engine that ran steps since the last time."""
        for role, party in _PARTIES.items():
            steps = self._page.get(party, Field.STEPS)
            # An engine that was started again counts from 0.
            since = steps - self._steps[role] if steps >= self._steps[role] else steps
            self._steps[role] = steps
            if since == 0:
                continue
            modes: tuple[tuple[Literal["prefill", "decode"], Field], ...] = (
                ("prefill", Field.PREFILL_ERROR_PPM),
                ("decode", Field.DECODE_ERROR_PPM),
            )
            for mode, field in modes:
                # Exactly 0 is a mode of which nothing was predicted yet.
                if error_ppm := self._page.get(party, field):
                    self._record(
                        StepTime(
                            at_us=self._anchor.now_us(),
                            device_id=self._device_id,
                            engine_id=self._engine_ids[role],
                            role=role,
                            mode=mode,
                            steps=since,
                            error_share=error_ppm / _PPM,
                        )
                    )
