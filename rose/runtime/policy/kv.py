"""How much of a serving device's KV memory rollouts may hold, and when they must give some back.

A headroom H is kept free for serving beyond what it holds. Serving growing into H past the high watermark is
pressure: the rollout budget is halved once and then frozen until the next RL step, so that it cannot oscillate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvMemory:
    """KV memory of one device, in bytes. `rollout_bytes` is what rollouts hold, not what they may hold."""

    device_bytes: int
    serving_bytes: int
    rollout_bytes: int
    headroom: float
    high_watermark: float

    @property
    def headroom_bytes(self) -> int:
        return int(self.device_bytes * self.headroom)

    @property
    def free_bytes(self) -> int:
        """Negative when both engines together hold more than the device's share (their pools are larger)."""
        return self.device_bytes - self.serving_bytes - self.rollout_bytes


def initial_budget_bytes(memory: KvMemory) -> int:
    """The budget of a new lease: all that serving neither holds nor keeps as headroom."""
    return max(0, memory.device_bytes - memory.headroom_bytes - memory.serving_bytes)


def under_pressure(memory: KvMemory) -> bool:
    """Whether less of the headroom is left free than the high watermark allows to be used."""
    return memory.free_bytes < (1.0 - memory.high_watermark) * memory.headroom_bytes


def cut_budget_bytes(budget_bytes: int, *, frozen: bool) -> int:
    """The budget after pressure: half, once; a frozen budget stays."""
    return budget_bytes if frozen else budget_bytes // 2
