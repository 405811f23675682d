"""Watches a device's serving engine, the errors of predicted step times, and what serving did in the last minute."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Literal

from rose.events import Record, StepTime
from rose.runtime.agent.rollout_engine import EngineAction, engine_event
from rose.runtime.coserving.attachment import Attachment, described
from rose.runtime.coserving.meter.hardware import elsewhere
from rose.runtime.coserving.page import ArbiterPage, Field, Party

if TYPE_CHECKING:
    from rose.runtime.agent.agent import AgentSpec

Role = Literal["serving", "rollout"]
_PARTIES: dict[Role, Party] = {"serving": Party.SERVING, "rollout": Party.ROLLOUT}
_ERRORS: dict[Literal["prefill", "decode"], Field] = {
    "prefill": Field.PREFILL_ERROR_PPM,
    "decode": Field.DECODE_ERROR_PPM,
}


class ServingWatch:
    def __init__(self, spec: AgentSpec, page: ArbiterPage, record: Record) -> None:
        self._spec, self._page, self._record = spec, page, record
        self._attached: Attachment | None = None  # the attached engine that was last recorded
        self._refused: Attachment | None = None  # the refusal that was last recorded
        self._busy = False

    @property
    def fault(self) -> str | None:
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
        attached = self._attached
        if not self._page.alive(Party.SERVING):
            if attached is not None:
                self._leave(attached)
            description = described(self._spec.page, "serving")
            if description is not None and description.refused is not None and description != self._refused:
                self._refused = description
                self._tell("refused", description, description.refused)
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
        if self._attached is not None:
            self._tell("detached", self._attached, reason)
            self._attached = None

    def _meet(self, pid: int) -> None:
        description = described(self._spec.page, "serving")
        # The description may be a former engine's; the new engine writes its own a moment later.
        if description is not None and description.pid == pid:
            refused = description.refused or elsewhere(self._spec.device, self._spec.page, pid)
            self._attached = dataclasses.replace(description, refused=refused)
            self._tell("attached", self._attached, self._attached.refused)

    def _leave(self, attached: Attachment) -> None:
        self._attached = None
        busy, self._busy = self._busy, False
        description = described(self._spec.page, "serving")
        if description is not None and description.pid == attached.pid and description.refused is not None:
            self._refused = description
            self._tell("detached", attached, description.refused)
        else:
            # An owner does not stop a server in the middle of a request.
            self._tell("died" if busy else "detached", attached, "it was serving requests" if busy else None)

    def _tell(self, action: EngineAction, attached: Attachment, reason: str | None) -> None:
        self._record(engine_event(self._spec, attached, action, attached.pid, reason=reason))


class StepTimeWatch:
    def __init__(self, spec: AgentSpec, page: ArbiterPage, record: Record) -> None:
        self._page, self._record, self._device_id, self._anchor = page, record, spec.device.id, spec.anchor
        self._engine_ids: dict[Role, str | None] = {
            "serving": spec.serving_engine_id,
            "rollout": None if spec.rollout is None else spec.rollout.engine_id,
        }
        self._steps: dict[Role, int] = dict.fromkeys(_PARTIES, 0)

    def tell(self) -> None:
        for role, party in _PARTIES.items():
            steps = self._page.get(party, Field.STEPS)
            since = steps - self._steps[role] if steps >= self._steps[role] else steps
            self._steps[role] = steps
            if since == 0:
                continue
            for mode, error_field in _ERRORS.items():
                if error_ppm := self._page.get(party, error_field):
                    self._record(
                        StepTime(
                            at_us=self._anchor.now_us(),
                            device_id=self._device_id,
                            engine_id=self._engine_ids[role],
                            role=role,
                            mode=mode,
                            steps=since,
                            error_share=error_ppm / 1e6,
                        )
                    )


class Minute:
    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque(maxlen=60)
        self.serving_ns = self.observed_ns = 0

    def add(self, serving_ns: int, observed_ns: int) -> None:
        self._seconds.append((serving_ns, observed_ns))
        self.serving_ns, self.observed_ns = map(sum, zip(*self._seconds, strict=True))
