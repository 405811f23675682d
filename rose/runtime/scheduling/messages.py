"""The messages between agents, clients and the controller, as JSON over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rose.config import BudgetMs, PositiveInt, RequestClassConfig
from rose.event_fields import AMOUNT_MAX, INSTANT_NS_MAX
from rose.transfer.wire.origin_rules import shown


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Report(BaseModel):
    """A message that ignores unknown fields, because agents and controller are upgraded separately."""

    model_config = ConfigDict(extra="ignore", frozen=True)


_STRETCH_MAX, _DAY_S = 1e6, 86_400


class BesideReport(Report):
    """The device share of rollouts beside live requests in the last second, and the slowdown of serving."""

    share: float = Field(ge=0, le=1)  # Share of the device.
    stretch: float = Field(ge=1, le=_STRETCH_MAX)  # Duration of serving's steps, divided by that without rollouts.
    stretch_max: float = Field(ge=1, le=_STRETCH_MAX)  # The owner's limit.
    held_by: Id | None = None  # The `Hold` for which the engine waits; None: it may run.


class EngineReport(Report):
    engine_id: Id
    device_id: Id
    url: Address
    token: Token | None = Field(default=None, repr=False)
    borrowed: bool
    alive: bool
    capacity: Count
    policy_version: Count
    lease_id: Id | None
    lease_left_ns: Nanoseconds | None
    slack_ok: bool
    run_id: Id | None = None  # The run of its weights; None: no run.
    failed: Failure | None = None  # Why the last sync failed.
    fault: Failure | None = None  # Why it can run no turn.
    beside: BesideReport | None = None  # None: its device lends nothing beside serving's requests.
    model: Address | None = None  # The last engine's model; None: no engine has answered.
    unstarted: Address | None = None  # A model that failed to start, or that the agent lacks.
    start_ns: Nanoseconds = 0  # Duration of the engine's start; 0: unknown.
    token_ids_only: bool = False  # Without a tokenizer it refuses texts, stop strings and grammars.


class ClockReading(Report):
    monotonic_ns: InstantNs
    utc_ns: InstantNs
    #: UTC that continues from the boot even if the wall clock is set.
    device_time_ns: InstantNs | None = None


class HostFacts(Report):
    """The state of a host's event writer. A field is None if unknown, or if the host forwards no events."""

    events_dropped: Count | None = None  # Events that its writer merged or only counted.
    segments_waiting: Count | None = None  # Segments that the ledger's gateway lacks.
    waiting_s: Seconds | None = None  # Age of the oldest waiting segment on disk.
    problem: Failure | None = None


class Heartbeat(Report):
    """An agent's report on a device. It is answered after `hold_s` seconds, or once reply number `seen` is outdated."""

    device_id: Id
    engines: Few[EngineReport]
    seen: Count = 0
    hold_s: float = Field(default=0.0, ge=0, le=10, allow_inf_nan=False)
    fault: Failure | None = None
    fault_name: Id | None = None  # The fault's name in the ledger.
    serving_ns: Nanoseconds = 0  # Serving's work in the last `observed_ns`, about a minute.
    observed_ns: Nanoseconds = 0
    host: Id | None = None
    host_facts: HostFacts | None = None
    clock: ClockReading | None = None


class Target(Report):
    run_id: Id
    version: Count
    url: Address
    token: Token | None = Field(default=None, repr=False)
    signer: Hex64 | None = None  # Signer of the version's manifests; None: unsigned.
    client_address: Name | None = None  # Address of the client that published the URL; None: unknown.


class Terms(Report):
    """Settings that an agent adopts while it runs. `coserving` has settings of the table `[coserving]`."""

    ttft_budget_ms: BudgetMs
    tpot_budget_ms: BudgetMs
    classes: Few[RequestClassConfig]
    max_prompt_tokens: PositiveInt
    coserving: ByName[Annotated[float, Field(ge=0, le=_DAY_S)]]


class HeartbeatReply(Report):
    """Instructions for a device. An engine that `targets` and `models` do not name keeps its weights and its model."""

    seq: Count = 0
    renew: Few[Id] = []  # Leases to renew.
    wanted_ns: ByName[Nanoseconds] = {}  # Never 0. A missing engine is not wanted.
    step: Count | None = None  # The RL step that wants the device.
    targets: ByName[Target] = {}
    drained: bool = False
    train_run_id: Id | None = None
    rollout_run_ids: ByName[Id | None] = {}  # By engine; None: no run. A missing engine keeps its run.
    models: ByName[Address] = {}  # By engine: it restarts if it has another model.
    terms: Terms | None = None  # None: as started.


class PreemptRequest(Message):
    """A request to remove turns from an engine, youngest first, until `kv_tokens` are free (None: all turns)."""

    engine_id: Id
    kv_tokens: Count | None = None
    reason: Failure


class PreemptReply(Message):
    requests: Count
    kv_tokens: Count


EXPIRES_S_MAX = 3600.0
Expiry = Annotated[float, Field(gt=0, le=EXPIRES_S_MAX, allow_inf_nan=False)]


class OpenRun(Message):
    name: Id
    model: Address = Field(min_length=1)
    team: Id | None = None
    tags: Tags = {}
    task: Name | None = None
    staleness_max: Count = 1  # Default of a turn's maximum age of weights, in versions.
    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    priority: int = Field(default=0, ge=-1000, le=1000)
    expires_s: Expiry = 60.0
    trainer_device: Id | None = None
    resume: Id | None = None
    fence: Fence | None = None  # With `resume`: the fence that the run must still have.
    key: Id | None = None  # A repeated key gets the first answer again.


class OpenedRun(Report):
    """The answer to a client that opens or renews a run, with the last version and step of the run."""

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
    fence: Fence
    version: Count
    url: Address
    token: Token | None = Field(default=None, repr=False)
    signer: Hex64 | None = None
    weights_sha256: Hex64 | None = None

    @model_validator(mode="after")
    def _token_can_be_sent(self) -> Self:
        if self.token is None:
            return self
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"token is given, but {shown(self.url)!r} uses fsspec's credentials: leave the token out")
        if not (self.token.isascii() and self.token.isprintable()):
            raise ValueError("token must be printable ASCII")
        return self


class RunEvents(Message):
    fence: Fence
    events: list[dict[str, Any]] = Field(min_length=1, max_length=10_000)


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
_SECONDS_MAX = 366 * 86400.0

T = TypeVar("T")


def _cut(value: object) -> object:
    return value[:REASON_LENGTH_MAX] if isinstance(value, str) else value


Count = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]  # Fits an event's field.
Nanoseconds = Count
InstantNs = Annotated[int, Field(ge=0, le=INSTANT_NS_MAX)]
Fence = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
Seconds = Annotated[float, Field(ge=0, le=100 * _SECONDS_MAX, allow_inf_nan=False)]  # A process may run for years.
Id = Annotated[str, Field(min_length=1, max_length=ID_LENGTH_MAX)]
Name = Annotated[str, Field(max_length=ID_LENGTH_MAX)]
Reason = Annotated[str, Field(max_length=REASON_LENGTH_MAX)]
#: A host's failure text, cut to a valid length.
Failure = Annotated[str, BeforeValidator(_cut), Field(max_length=REASON_LENGTH_MAX)]
Address = Annotated[str, Field(max_length=_ADDRESS_LENGTH_MAX)]
Token = Annotated[str, Field(max_length=_ADDRESS_LENGTH_MAX)]
Hex64 = Annotated[str, Field(max_length=64, pattern="^[0-9a-f]{64}$")]  # A SHA-256, or an Ed25519 public key.
Tags = Annotated[dict[Name, Name], Field(max_length=64)]
Few = Annotated[list[T], Field(max_length=_NAMES_MAX)]
ByName = Annotated[dict[Name, T], Field(max_length=_NAMES_MAX)]
