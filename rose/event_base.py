"""What every event of the ledger carries, whatever its kind."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import ClassVar, Literal

from rose.clock import utc_us
from rose.event_fields import Count, Id, InstantUs, Rule

Provenance = Literal["live", "replay", "simulated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """What every event carries beside the fields of its kind."""

    kind: ClassVar[str]
    #: True for kinds that must be on disk before the act they describe is acknowledged.
    durable: ClassVar[bool] = False
    #: Fields that are optional in other kinds.
    needs: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()

    at_us: InstantUs = dataclasses.field(default_factory=utc_us)
    #: Chosen by the client; a retried event with the same id counts once. None: the ledger makes one.
    event_id: Id | None = None
    #: The run it belongs to. None: the run of the writer that records it.
    run_id: Id | None = None
    device_id: Id | None = None
    engine_id: Id | None = None
    lease_id: Id | None = None
    trajectory_id: Id | None = None
    policy_version: Count | None = None


class Record(typing.Protocol):
    """Where events go: a ledger writer's `record`. `durable` None means what the event's kind says."""

    def __call__(self, event: Event, *, durable: bool | None = None) -> object: ...
