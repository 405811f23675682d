"""Kinds of events in which whoever sizes the fleet says what was decided about its devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rose.event_base import Event
from rose.event_fields import INTERVAL, InstantNs, Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleDown(Event):
    """Over [t0_ns, t1_ns) of a device, what lending decided about its being there."""

    kind: ClassVar[str] = "scale_down"
    durable: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    rules: ClassVar[tuple[Rule, ...]] = INTERVAL
    #: `kept`: a serving device would have been given back, and was kept to be lent. `let_go`: a dedicated device was
    #: given up, because there was borrowing in its place.
    decision: Literal["kept", "let_go"]
    t0_ns: InstantNs
    t1_ns: InstantNs
    #: The name the price book knows the device by.
    device_class: str
    #: Who decided, such as a person or an autoscaler.
    decided_by: str
    reason: str | None = None
