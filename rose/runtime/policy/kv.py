"""Decides how much KV memory rollouts may hold. After a cut, the budget is frozen, so that it cannot oscillate."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class KvMemory:
    device_bytes: int
    serving_bytes_per_token: int
    rollout_bytes_per_token: int
    headroom: float
    high_watermark: float
    serving_tokens: int = 0  # Waiting prompts included.
    rollout_tokens: int = 0

    @property
    def serving_bytes(self) -> int:
        return self.serving_tokens * self.serving_bytes_per_token

    @property
    def headroom_bytes(self) -> int:
        return int(self.device_bytes * self.headroom)

    @property
    def free_bytes(self) -> int:
        return self.device_bytes - self.serving_bytes - self.rollout_tokens * self.rollout_bytes_per_token


def initial_budget_bytes(memory: KvMemory) -> int:
    return max(0, memory.device_bytes - memory.headroom_bytes - memory.serving_bytes)


def under_pressure(memory: KvMemory) -> bool:
    """Return whether more than the share `high_watermark` of `headroom_bytes` is in use."""
    return memory.free_bytes < (1.0 - memory.high_watermark) * memory.headroom_bytes


def retraction_order(arrived_ns: Mapping[str, int]) -> list[str]:
    """Return the request ids, the youngest request first, because the youngest lose the least work."""
    return sorted(arrived_ns, key=lambda request_id: -arrived_ns[request_id])
