"""The parts of a fleet as its keeper sees them, and how they are for who asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_HOST = "host "
#: What a part is at whose work ends; its process is there for as long as nobody ends it.
STOPPING = "is stopping"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartState:
    """How a part of the fleet is. `doing`: what it is at, or why it is not ready; nothing if it is."""

    name: str
    ready: bool
    doing: str
    pid: int | None = None
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReport:
    """How a host is. `ready`: its agents are at work; else `doing` says what it is at or why it cannot go on. It says
    nothing of one that is stopping."""

    ready: bool
    doing: str
    pid: int
    #: Of each device that is not well, why.
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetState:
    """How the fleet is, for who started it or looks after it."""

    run_id: str
    url: str
    parts: list[PartState]
    stopped: bool = False
    #: It is being put down.
    ending: bool = False

    @property
    def ready(self) -> bool:
        return bool(self.parts) and all(part.ready for part in self.parts)


@dataclass(slots=True, eq=False)
class Part:
    """A named actor, and the question that it was asked last."""

    name: str
    place: Callable[[], Any]
    resource: str
    actor: Any = None
    call: Any = None
    asked_s: float = 0.0
    #: It was told to stop, to be started anew.
    restarts: bool = False
    state: PartState = field(init=False)

    def __post_init__(self) -> None:
        self.state = PartState(name=self.name, ready=False, doing="is being placed")

    @property
    def is_host(self) -> bool:
        return self.name.startswith(_HOST)

    def hear(self, report: object) -> None:
        """Take what the part reports of itself."""
        if isinstance(report, HostReport):
            doing, pid, faults = "" if report.ready else report.doing or STOPPING, report.pid, report.faults
        else:
            assert isinstance(report, tuple)
            (doing, pid), faults = report, {}
        self.state = PartState(name=self.name, ready=not doing, doing=doing, pid=pid, faults=faults)


def host_part(host: str) -> str:
    """What the part of a host is named."""
    return f"{_HOST}{host}"
