"""What agents, clients and the controller say to each other: JSON over HTTP, validated where it arrives."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rose.event_fields import AMOUNT_MAX, INSTANT_NS_MAX
from rose.runtime.transfer.wire.origin_rules import shown

_EVENTS_MAX = 10_000


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Report(BaseModel):
    """Fields of a later version are ignored: agents and controller are replaced one after the other."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class EngineReport(Report):
    """One rollout engine, as its agent sees it at a heartbeat."""

    engine_id: Id
    device_id: Id
    url: Address
    #: What it asks for there.
    token: Token | None = Field(default=None, repr=False)
    borrowed: bool
    alive: bool
    capacity: Count
    policy_version: Count
    lease_id: Id | None
    lease_left_ns: Nanoseconds | None
    slack_ok: bool
    #: The run whose weights it holds; None: weights that belong to no run.
    run_id: Id | None = None
    #: Why it is not at its target, if it was tried.
    failed: Failure | None = None
    #: Why no turn can run on it, if its agent knows.
    fault: Failure | None = None


class ClockReading(Report):
    """Both clocks of a host, read at once."""

    monotonic_ns: InstantNs
    utc_ns: InstantNs
    #: UTC by which the agent records its device's time: it goes on from the host's boot, whatever the wall clock is
    #: set to.
    device_time_ns: InstantNs | None = None


class HostFacts(Report):
    """A host, as the process of its agents knows it. None: it does not know, or its ledger is no spool."""

    #: Events that its writer merged or only counted since the process began.
    events_dropped: Count | None = None
    #: Segments of events that the ledger's gateway lacks, and how long the oldest of them has been on disk.
    segments_waiting: Count | None = None
    waiting_s: Seconds | None = None
    #: Why events do not come to the ledger.
    problem: Failure | None = None


class Heartbeat(Report):
    """Sent by a device's agent; `engines` is all its rollout engines.

    It is answered as soon as what is wanted of them differs from answer number `seen`, or after `hold_s`.
    """

    device_id: Id
    engines: Few[EngineReport]
    seen: Count = 0
    hold_s: float = Field(default=0.0, ge=0, le=10, allow_inf_nan=False)
    #: Why nothing of the device is lent.
    fault: Failure | None = None
    host: Id | None = None
    host_facts: HostFacts | None = None
    clock: ClockReading | None = None


class Target(Report):
    """What an engine must hold: a version of a run's weights, and where they are fetched."""

    run_id: Id
    version: Count
    url: Address
    token: Token | None = Field(default=None, repr=False)
    #: Where the client was that published the URL; None: not known.
    client_address: Name | None = None


class HeartbeatReply(Report):
    """What the controller wants of a device. A lease that is not named in `renew` is not renewed.

    `wanted_ns` is the device time expected to be wanted of each engine; absent or 0, nothing is wanted. `step` is the
    RL step that turns are made for, if they say one. An engine that `targets` does not name stays as it is.
    """

    seq: Count
    renew: Few[Id]
    wanted_ns: ByName[Nanoseconds]
    step: Count | None
    targets: ByName[Target] = {}
    #: Nothing of the device may be lent.
    drained: bool = False
    #: The run that trains on the device.
    train_run_id: Id | None = None
    #: The run that each engine is assigned to, None: to none. One that is not named stays with its run.
    rollout_run_ids: ByName[Id | None] = {}


class PreemptRequest(Message):
    """Take turns off an engine: the youngest that together free `kv_tokens`, or all of them if None."""

    engine_id: Id
    kv_tokens: Count | None = None
    reason: Failure


class PreemptReply(Message):
    requests: Count
    kv_tokens: Count


EXPIRES_S_MAX = 3600.0
Expiry = Annotated[float, Field(gt=0, le=EXPIRES_S_MAX, allow_inf_nan=False)]


class OpenRun(Message):
    """A client opens a run, or takes it up again with `resume`: then what is given here holds from now on."""

    name: Id
    #: The fleet's rollout model.
    model: Address = Field(min_length=1)
    team: Id | None = None
    tags: Tags = {}
    task: Name | None = None
    #: How many versions a turn's weights may be behind the newest, where the turn says nothing else.
    staleness_max: Count = 1
    #: Its share of engines beside that of other runs of the same priority.
    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    #: Runs of a higher one are served first.
    priority: int = Field(default=0, ge=-1000, le=1000)
    #: Not heard of for so long, it ends.
    expires_s: Expiry = 60.0
    trainer_device: Id | None = None
    resume: Id | None = None
    #: With `resume`, of a client that goes on with what it had itself: the run must still have this fence.
    fence: Fence | None = None
    #: What comes again with its key is answered as before: nothing is opened, or taken over, twice.
    key: Id | None = None


class OpenedRun(Report):
    """`version` is the newest that was published, `step` the last that was recorded; None: none was."""

    run_id: Id
    fence: Fence
    version: Count | None
    step: Count | None
    url: Address
    expires_s: Expiry


class RenewRun(Message):
    fence: Fence
    expires_s: Expiry | None = None


class PublishVersion(Message):
    """The weights of a version can be fetched at `url`, with `token` if one is given."""

    fence: Fence
    version: Count
    #: The controller checks it by the rules of the fleet.
    url: Address
    token: Token | None = Field(default=None, repr=False)
    #: What tells them from other weights, if the client says it.
    weights_sha256: str | None = Field(default=None, max_length=64, pattern="^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _token_can_be_sent(self) -> Self:
        if self.token is None:
            return self
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"token is given, and {shown(self.url)!r} takes none: its credentials are fsspec's own")
        if not (self.token.isascii() and self.token.isprintable()):
            raise ValueError("token holds a character that is not printable ASCII")
        return self


class RunEvents(Message):
    """Events of the run, each with its `kind`, an `event_id` and the fields of its kind."""

    fence: Fence
    events: list[dict[str, Any]] = Field(min_length=1, max_length=_EVENTS_MAX)


class CloseRun(Message):
    fence: Fence
    outcome: Literal["ended", "failed"] = "ended"
    reason: Reason | None = None


class DrainDevice(Message):
    reason: Reason | None = None


ID_LENGTH_MAX = 256
REASON_LENGTH_MAX = 1024
_ADDRESS_LENGTH_MAX = 4096
_NAMES_MAX = 1024
_TAGS_MAX = 64
#: A leap year.
_SECONDS_MAX = 366 * 86400.0

T = TypeVar("T")


def _cut(value: object) -> object:
    return value[:REASON_LENGTH_MAX] if isinstance(value, str) else value


#: A number that an event of the ledger can hold.
Count = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]
Nanoseconds = Count
#: UTC or monotonic.
InstantNs = Annotated[int, Field(ge=0, le=INSTANT_NS_MAX)]
Fence = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
#: A process may run for years.
Seconds = Annotated[float, Field(ge=0, le=100 * _SECONDS_MAX, allow_inf_nan=False)]
Id = Annotated[str, Field(min_length=1, max_length=ID_LENGTH_MAX)]
Name = Annotated[str, Field(max_length=ID_LENGTH_MAX)]
Reason = Annotated[str, Field(max_length=REASON_LENGTH_MAX)]
#: What a host reports of a failure. A long one is cut: its host must stay heard.
Failure = Annotated[str, BeforeValidator(_cut), Field(max_length=REASON_LENGTH_MAX)]
#: A URL, or the path of a model.
Address = Annotated[str, Field(max_length=_ADDRESS_LENGTH_MAX)]
Token = Annotated[str, Field(max_length=_ADDRESS_LENGTH_MAX)]
Tags = Annotated[dict[Name, Name], Field(max_length=_TAGS_MAX)]
Few = Annotated[list[T], Field(max_length=_NAMES_MAX)]
ByName = Annotated[dict[Name, T], Field(max_length=_NAMES_MAX)]
