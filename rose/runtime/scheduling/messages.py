"""What agents and the gateway say to each other: JSON over HTTP, validated where it arrives."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SamplingParams(BaseModel):
    """SGLang's sampling parameters: the gateway reads the one below and passes the rest on."""

    model_config = ConfigDict(extra="allow", frozen=True)

    max_new_tokens: int = Field(default=128, ge=0, strict=True)


class TurnLabels(BaseModel):
    """What the gateway is told of a turn beside SGLang's fields; unknown ones are left to the client."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)

    trajectory_id: str | None = None


class GenerateRequest(BaseModel):
    """One turn to generate, in the fields of SGLang's `/generate`; those that the gateway does not know are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    #: The first wrong token is enough to know: a prompt may have a hundred thousand.
    input_ids: list[Annotated[int, Field(ge=0, strict=True)]] = Field(min_length=1, fail_fast=True)
    sampling_params: SamplingParams | None = None
    rose: TurnLabels | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters to send to an engine, `max_new_tokens` always among them."""
        return (self.sampling_params or SamplingParams()).model_dump()


class EngineReport(Message):
    """One rollout engine, as its agent sees it at a heartbeat."""

    engine_id: str = Field(min_length=1)
    device_id: str = Field(min_length=1)
    url: str
    borrowed: bool
    alive: bool
    capacity: int = Field(ge=0)
    policy_version: int = Field(ge=0)
    lease_id: str | None
    lease_left_ns: int | None
    slack_ok: bool


class Heartbeat(Message):
    """Sent by a device's agent; `engines` is all its rollout engines.

    It is answered when what the gateway wants of them differs from its answer number `seen`, or after `hold_s`.
    """

    device_id: str = Field(min_length=1)
    engines: list[EngineReport]
    seen: int = 0
    hold_s: float = 0.0


class HeartbeatReply(Message):
    """What the gateway wants of a device: the leases it still wants, since one that is not named is not renewed, and
    the device time it expects to want of each engine. `step` is the RL step it is at, if it knows."""

    seq: int = 0
    renew: list[str]
    wanted_ns: dict[str, int] = {}
    step: int | None = None


class PreemptRequest(Message):
    """Take turns off an engine: the youngest that together free `kv_tokens`, or all of them if None."""

    engine_id: str = Field(min_length=1)
    kv_tokens: int | None = Field(default=None, ge=0)
    reason: str


class PreemptReply(Message):
    requests: int
    kv_tokens: int


class StepRequest(Message):
    """An RL step begins or ends; between the two the gateway wants leases and turns must be at least `version_min`."""

    step: int = Field(ge=0)
    open: bool
    version_min: int = Field(ge=0)
