"""What agents and the gateway say to each other: JSON over HTTP, validated where it arrives."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
    #: The oldest weights that the turn may be generated with, beside the bound of the open step.
    version_min: int = Field(default=0, ge=0)


class GenerateRequest(BaseModel):
    """One turn to generate, in the fields of SGLang's `/generate`; those that the gateway does not know are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    #: The first wrong token is enough to know: a prompt may have a hundred thousand.
    input_ids: list[Annotated[int, Field(ge=0, strict=True)]] = Field(min_length=1, fail_fast=True)
    sampling_params: SamplingParams | None = None
    rose: TurnLabels | None = None
    #: The answer comes whole. What would change its form is refused rather than ignored.
    stream: Literal[False] | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters to send to an engine: those that were given, and `max_new_tokens`."""
        given = self.sampling_params or SamplingParams()
        return {"max_new_tokens": given.max_new_tokens, **given.model_dump(exclude_unset=True)}


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

    It is answered as soon as what is wanted of them differs from answer number `seen`, or after `hold_s`.
    """

    device_id: str = Field(min_length=1)
    engines: list[EngineReport]
    seen: int = 0
    hold_s: float = Field(default=0.0, ge=0, le=10)


class HeartbeatReply(Message):
    """What the gateway wants of a device. A lease that is not named in `renew` is not renewed.

    `wanted_ns` is the device time expected to be wanted of each engine; absent or 0, nothing is wanted. `step` is the
    RL step that is open, if one is.
    """

    seq: int
    renew: list[str]
    wanted_ns: dict[str, int]
    step: int | None


class PreemptRequest(Message):
    """Take turns off an engine: the youngest that together free `kv_tokens`, or all of them if None."""

    engine_id: str = Field(min_length=1)
    kv_tokens: int | None = Field(default=None, ge=0)
    reason: str


class PreemptReply(Message):
    requests: int
    kv_tokens: int


class StepRequest(Message):
    """An RL step is open for the next `expires_s` seconds: turns must be at least `version_min` until then."""

    step: int = Field(ge=0)
    version_min: int = Field(ge=0)
    expires_s: float = Field(gt=0, le=3600)
