"""What the ledger is told of a device and the engines on it, beside leases and syncs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rose.events import Device, Engine, Record, StepTime
from rose.runtime.coserving.page import ArbiterPage, Field, Party

if TYPE_CHECKING:
    from rose.runtime.coserving.agent import AgentSpec

Role = Literal["serving", "rollout"]
EngineAction = Literal["started", "stopped", "died", "attached", "detached"]
_PARTIES: dict[Role, Party] = {"serving": Party.SERVING, "rollout": Party.ROLLOUT}
_PPM = 1e6
#: After so many looks an engine is recorded without the note that it never left.
_LOOKS_FOR_NOTE = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineNote:
    """What an engine's plugin says of itself in a file beside the page, written when it attaches.

    `refused`: why it will not be shared with, although it serves.
    """

    pid: int | None = None
    model: str | None = None
    kv_tokens: int | None = None
    compute_mechanism: str | None = None
    memory_mechanism: str | None = None
    refused: str | None = None


def note_path(page: Path, role: Role) -> Path:
    return page.with_name(f"{page.name}.{role}.json")


def read_note(page: Path, role: Role) -> EngineNote | None:
    """The note of the engine of that role; None if there is none that can be read."""
    try:
        stored: dict[str, Any] = json.loads(note_path(page, role).read_text())
        return EngineNote(**{name: stored.get(name) for name in EngineNote.__dataclass_fields__})
    except (OSError, ValueError, AttributeError):
        return None


def record_device(record: Record, spec: AgentSpec, action: Literal["joined", "left"], at_ns: int) -> None:
    """The device joined or left the fleet at `at_ns`, monotonic."""
    device = spec.device
    record(
        Device(
            device_id=device.id,
            action=action,
            t_ns=spec.anchor.utc_ns(at_ns),
            pool=device.pool,
            device_class=device.device_class,
            memory_bytes=device.kv_bytes,
        )
    )


def rollout_event(
    spec: AgentSpec, action: EngineAction, pid: int | None, *, duration_ns: int | None = None, reason: str | None = None
) -> Engine:
    """A change in the life of the device's rollout engine."""
    engine = spec.rollout
    assert engine is not None, "a device without a rollout engine has no events of one"
    note = read_note(spec.page, "rollout") or EngineNote()
    return Engine(
        device_id=spec.device.id,
        engine_id=engine.engine_id,
        action=action,
        role="rollout",
        model=engine.model_name,
        pid=pid,
        kv_bytes=(note.kv_tokens or engine.max_total_tokens) * spec.rollout_kv_bytes_per_token,
        duration_ns=duration_ns,
        memory_mechanism=note.memory_mechanism or "budget",
        compute_mechanism=note.compute_mechanism or ("layer-yield" if engine.plugin.gated else "exclusive"),
        reason=reason,
    )


class ServingWatch:
    """Sees the serving engine come to the page and leave it. It belongs to its owner: nothing is done to it."""

    def __init__(self, spec: AgentSpec, page: ArbiterPage, record: Record) -> None:
        self._spec, self._page, self._record = spec, page, record
        #: The one that is attached, as the ledger was told of it.
        self._attached: EngineNote | None = None
        #: How often an engine was seen that has not left a note yet, and its pid.
        self._looked, self._looked_at = 0, 0

    @property
    def fault(self) -> str | None:
        """Why no serving engine can be shared with; None while one is attached."""
        if self._page.alive(Party.SERVING):
            return None
        note = read_note(self._spec.page, "serving")
        if note is not None and note.refused is not None:
            return f"the serving engine does not share its device: {note.refused}"
        return "no serving engine is attached to the device's page"

    def look(self) -> None:
        """Record what changed since the last look."""
        attached = self._attached
        if not self._page.alive(Party.SERVING):
            if attached is not None:
                self._leave(attached)
            return
        pid = self._page.get(Party.SERVING, Field.PID)
        if attached is not None and attached.pid != pid:
            self._leave(attached)
            attached = None
        if attached is None:
            note = read_note(self._spec.page, "serving")
            # What an engine before this one left says nothing of this one, whose own comes a moment after it.
            own = note is not None and note.pid == pid
            self._looked = self._looked + 1 if pid == self._looked_at else 1
            self._looked_at = pid
            if own or self._looked >= _LOOKS_FOR_NOTE:
                self._attached = note if note is not None and own else EngineNote(pid=pid)
                self._tell("attached", self._attached, self._attached.refused)

    def close(self, reason: str) -> None:
        """The agent looks no more."""
        if self._attached is not None:
            self._tell("detached", self._attached, reason)
            self._attached = None

    def _leave(self, attached: EngineNote) -> None:
        self._attached = None
        # An engine that is stopped in order takes its note along, one that is killed does not.
        note = read_note(self._spec.page, "serving")
        died = note is not None and note.pid == attached.pid and not Path(f"/proc/{attached.pid}").exists()
        self._tell("died" if died else "detached", attached, "its process ended" if died else None)

    def _tell(self, action: EngineAction, note: EngineNote, reason: str | None) -> None:
        spec = self._spec
        kv_bytes = None if note.kv_tokens is None else note.kv_tokens * spec.serving_kv_bytes_per_token
        self._record(
            Engine(
                device_id=spec.device.id,
                engine_id=spec.serving_engine_id or f"{spec.device.id}-serving",
                action=action,
                role="serving",
                model=note.model or spec.serving_model,
                pid=note.pid,
                kv_bytes=kv_bytes,
                memory_mechanism=note.memory_mechanism,
                compute_mechanism=note.compute_mechanism,
                reason=reason,
            )
        )


class StepTimeWatch:
    """Tells how well the engines of a device predict their steps."""

    def __init__(self, spec: AgentSpec, page: ArbiterPage, record: Record) -> None:
        self._page, self._record, self._device_id = page, record, spec.device.id
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
                            device_id=self._device_id,
                            engine_id=self._engine_ids[role],
                            role=role,
                            mode=mode,
                            steps=since,
                            error_share=error_ppm / _PPM,
                        )
                    )
