"""What agents and the gateway say to each other: JSON over HTTP, validated where it arrives."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
    """Sent by a device's agent; `engines` is all its rollout engines."""

    device_id: str = Field(min_length=1)
    engines: list[EngineReport]


class HeartbeatReply(Message):
    """Leases the gateway still wants. A lease that is not named is not renewed."""

    renew: list[str]


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
