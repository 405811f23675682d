"""What agents, clients and the controller say to each other: JSON over HTTP, validated where it arrives."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rose.event_fields import AMOUNT_MAX
from rose.runtime.transfer.wire.origin_rules import shown

ID_LENGTH_MAX = 256
_TOKEN_ID_MAX = 2**63 - 1
#: A number that an event of the ledger can hold.
Number = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Report(BaseModel):
    """Fields of a later version are ignored: agents and controller are replaced one after the other."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class SamplingParams(BaseModel):
    """SGLang's sampling parameters: the gateway reads the one below and passes the rest on."""

    model_config = ConfigDict(extra="allow", frozen=True)

    max_new_tokens: int = Field(default=128, ge=0, strict=True)
    #: Passed on only where it was given.
    min_new_tokens: int = Field(default=0, ge=0, strict=True)
    n: Literal[1] = 1


class TurnLabels(BaseModel):
    """What the gateway is told of a turn beside SGLang's fields; unknown ones are left to the client."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)

    trajectory_id: str | None = None
    #: The oldest weights that the turn may be generated with; None: what the run's staleness bound allows.
    version_min: Number | None = None
    #: What the turn is in the ledger. None: the number of turns that the trajectory had before, for `turn`.
    group_id: str | None = Field(default=None, min_length=1, max_length=ID_LENGTH_MAX)
    step: Number | None = None
    turn: Number | None = None
    #: A turn of the run that comes again with its key is the same turn, and made once.
    key: str | None = Field(default=None, min_length=1, max_length=ID_LENGTH_MAX)


class GenerateRequest(BaseModel):
    """One turn to generate, in the fields of SGLang's `/generate`; those that the gateway does not know are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    #: The first wrong token is enough to know: a prompt may have a hundred thousand.
    input_ids: list[Annotated[int, Field(ge=0, le=_TOKEN_ID_MAX, strict=True)]] = Field(min_length=1, fail_fast=True)
    sampling_params: SamplingParams | None = None
    rose: TurnLabels | None = None
    #: As server-sent events while it is made, rather than whole.
    stream: bool | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters to send to an engine: those that were given, and `max_new_tokens`."""
        given = self.sampling_params or SamplingParams()
        return {"max_new_tokens": given.max_new_tokens, **given.model_dump(exclude_unset=True)}


class EngineReport(Report):
    """One rollout engine, as its agent sees it at a heartbeat."""

    engine_id: str = Field(min_length=1)
    device_id: str = Field(min_length=1)
    url: str
    #: What it asks for there.
    token: str | None = Field(default=None, repr=False)
    borrowed: bool
    alive: bool
    capacity: int = Field(ge=0)
    policy_version: int = Field(ge=0)
    lease_id: str | None
    lease_left_ns: int | None
    slack_ok: bool
    #: The run whose weights it holds; None: weights that belong to no run.
    run_id: str | None = None
    #: Why it is not at its target, if it was tried.
    failed: str | None = None
    #: Why no turn can run on it, if its agent knows.
    fault: str | None = None


class ClockReading(Report):
    """Both clocks of a host, read at once."""

    monotonic_ns: int
    utc_ns: int
    #: UTC by which the agent records its device's time: it goes on from the host's boot, whatever the wall clock is
    #: set to.
    device_time_ns: int | None = None


class HostFacts(Report):
    """A host, as the process of its agents knows it. None: it does not know, or its ledger is no spool."""

    #: Since the process began.
    uptime_s: float | None = None
    resident_bytes: int | None = None
    #: Events that its writer merged or only counted since then.
    events_dropped: int | None = None
    #: Segments of events that the ledger's gateway lacks, and how long the oldest of them has been on disk.
    segments_waiting: int | None = None
    waiting_s: float | None = None
    #: Why events do not come to the ledger.
    problem: str | None = None


class Heartbeat(Report):
    """Sent by a device's agent; `engines` is all its rollout engines.

    It is answered as soon as what is wanted of them differs from answer number `seen`, or after `hold_s`.
    """

    device_id: str = Field(min_length=1)
    engines: list[EngineReport]
    seen: int = 0
    hold_s: float = Field(default=0.0, ge=0, le=10)
    #: Why nothing of the device is lent.
    fault: str | None = None
    host: str | None = None
    host_facts: HostFacts | None = None
    clock: ClockReading | None = None


class Target(Report):
    """What an engine must hold: a version of a run's weights, and where they are fetched."""

    run_id: str
    version: int
    url: str
    token: str | None = Field(default=None, repr=False)
    #: Where the client was that published the URL; None: not known.
    client_address: str | None = None


class HeartbeatReply(Report):
    """What the controller wants of a device. A lease that is not named in `renew` is not renewed.

    `wanted_ns` is the device time expected to be wanted of each engine; absent or 0, nothing is wanted. `step` is the
    RL step that turns are made for, if they say one. An engine that `targets` does not name stays as it is.
    """

    seq: int
    renew: list[str]
    wanted_ns: dict[str, int]
    step: int | None
    targets: dict[str, Target] = {}
    #: Nothing of the device may be lent.
    drained: bool = False
    #: The run that trains on the device.
    train_run_id: str | None = None
    #: The run that each engine is assigned to, None: to none. One that is not named stays with its run.
    rollout_run_ids: dict[str, str | None] = {}


class PreemptRequest(Message):
    """Take turns off an engine: the youngest that together free `kv_tokens`, or all of them if None."""

    engine_id: str = Field(min_length=1)
    kv_tokens: int | None = Field(default=None, ge=0)
    reason: str


class PreemptReply(Message):
    requests: int
    kv_tokens: int


EXPIRES_S_MAX = 3600.0
Expiry = Annotated[float, Field(gt=0, le=EXPIRES_S_MAX, allow_inf_nan=False)]


class OpenRun(Message):
    """A client opens a run, or takes it up again with `resume`: then what is given here holds from now on."""

    name: str = Field(min_length=1, max_length=ID_LENGTH_MAX)
    #: The fleet's rollout model.
    model: str = Field(min_length=1)
    team: str | None = Field(default=None, min_length=1)
    tags: dict[str, str] = {}
    task: str | None = None
    #: How many versions a turn's weights may be behind the newest, where the turn says nothing else.
    staleness_max: int = Field(default=1, ge=0)
    #: Its share of engines beside that of other runs of the same priority.
    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    #: Runs of a higher one are served first.
    priority: int = Field(default=0, ge=-1000, le=1000)
    #: Not heard of for so long, it ends.
    expires_s: Expiry = 60.0
    trainer_device: str | None = Field(default=None, min_length=1)
    resume: str | None = Field(default=None, min_length=1)
    #: With `resume`, of a client that goes on with what it had itself: the run must still have this fence.
    fence: int | None = Field(default=None, ge=1)
    #: What comes again with its key is answered as before: nothing is opened, or taken over, twice.
    key: str | None = Field(default=None, min_length=1, max_length=ID_LENGTH_MAX)


class OpenedRun(Report):
    """`version` is the newest that was published, `step` the last that was recorded; None: none was."""

    run_id: str
    fence: int
    version: int | None
    step: int | None
    url: str
    expires_s: float


class RenewRun(Message):
    fence: int = Field(ge=1)
    expires_s: Expiry | None = None


class PublishVersion(Message):
    """The weights of a version can be fetched at `url`, with `token` if one is given."""

    fence: int = Field(ge=1)
    version: Number
    #: The controller checks it by the rules of the fleet.
    url: Annotated[str, Field(max_length=2048)]
    token: str | None = Field(default=None, repr=False)
    #: What tells them from other weights, if the client says it.
    weights_sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")

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

    fence: int = Field(ge=1)
    events: list[dict[str, Any]] = Field(min_length=1, max_length=10_000)


class CloseRun(Message):
    fence: int = Field(ge=1)
    outcome: Literal["ended", "failed"] = "ended"
    reason: str | None = None


class DrainDevice(Message):
    reason: str | None = None
