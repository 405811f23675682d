"""Kinds of events about a fleet's devices: what whoever sizes it decided of them, and how their hosts' clocks stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rose.event_base import Event
from rose.event_fields import INTERVAL, Id, InstantNs, OffsetNs, Rule


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock(Event):
    """How far the clocks of a device's host are from the controller's; it holds until the device's next such event.

    The measured offset is too low by the delay of the quickest recent message.
    """

    kind: ClassVar[str] = "clock"
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    #: `heard`: by a controller that had not heard of the device. `set`: one of the two wall clocks was set. `moved`:
    #: they drifted apart, or a quicker message says so; once a minute at most.
    action: Literal["heard", "set", "moved"]
    #: The host's wall clock less the controller's.
    offset_ns: OffsetNs
    #: The clock by which the device's agent records, less the controller's wall clock: it is taken at the host's boot,
    #: never before what was recorded of the device by then, and goes on whatever the host's wall clock is set to. None:
    #: the agent did not say.
    device_time_offset_ns: OffsetNs | None = None
    host: Id | None = None
