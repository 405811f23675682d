"""What an agent of a device is told when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rose.clock import Anchor
from rose.config import CoservingConfig, DeviceConfig
from rose.runtime.engines.sglang import EngineSpec
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.slack import Budgets
from rose.runtime.scheduling.messages import HostFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSpec:
    """What an agent is told when it is made. `*_kv_bytes_per_token` follow from the models' shapes.

    `serving_*` name the serving engine that its owner runs on the device; `serving_url` is None where there is none.
    """

    device: DeviceConfig
    coserving: CoservingConfig
    budgets: Budgets
    max_prompt_tokens: int
    run_id: str
    anchor: Anchor
    page: Path
    staging: Path
    rollout: EngineSpec | None
    rollout_capacity: int
    rollout_kv_bytes_per_token: int
    serving_url: str | None
    serving_engine_id: str | None
    serving_model: str
    serving_kv_bytes_per_token: int
    gateway_url: str
    #: What the agent shows the controller.
    agent_token: str = field(default="", repr=False)
    #: The host's name, as its controller knows it.
    host: str | None = None
    #: Gives what heartbeats say of the host.
    host_facts: Callable[[], HostFacts] | None = None

    def memory(self) -> KvMemory:
        """How the device's KV memory is divided; what is held of it is on the page."""
        return KvMemory(
            device_bytes=self.device.kv_bytes,
            serving_bytes_per_token=self.serving_kv_bytes_per_token,
            rollout_bytes_per_token=self.rollout_kv_bytes_per_token,
            headroom=self.coserving.headroom,
            high_watermark=self.coserving.high_watermark,
        )
