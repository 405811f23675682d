"""How much of a serving device's KV memory rollouts may hold, and when they must give some back.

A headroom H is kept free for serving beyond what it holds. Serving growing into H past the high watermark is
pressure: the rollout budget is halved once and then frozen until the lease's next term, so that it cannot oscillate;
requests that no longer fit are retracted one by one, the youngest first, until the rest does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class KvMemory:
    """KV memory of one device, which two models of different shape share: bytes, and slots of a token of each.

    `*_tokens` is what requests hold, not what they may hold; serving's prompts that wait for a step count as held, so
    that there is pressure before they are.
    """

    device_bytes: int
    serving_bytes_per_token: int
    rollout_bytes_per_token: int
    headroom: float
    high_watermark: float
    serving_tokens: int = 0
    rollout_tokens: int = 0

    @property
    def serving_bytes(self) -> int:
        return self.serving_tokens * self.serving_bytes_per_token

    @property
    def rollout_bytes(self) -> int:
        return self.rollout_tokens * self.rollout_bytes_per_token

    @property
    def headroom_bytes(self) -> int:
        return int(self.device_bytes * self.headroom)

    @property
    def free_bytes(self) -> int:
        """Negative when both engines together hold more than the device's share (their pools are larger)."""
        return self.device_bytes - self.serving_bytes - self.rollout_bytes


@dataclass(frozen=True, slots=True)
class HeldKv:
    """A rollout request that holds KV memory, or waits for some: its id, and when it came (monotonic)."""

    request_id: str
    arrived_ns: int


def initial_budget_bytes(memory: KvMemory) -> int:
    """The budget of a new lease: all that serving neither holds nor keeps as headroom."""
    return max(0, memory.device_bytes - memory.headroom_bytes - memory.serving_bytes)


def under_pressure(memory: KvMemory) -> bool:
    """Whether less of the headroom is left free than the high watermark allows to be used."""
    return memory.free_bytes < (1.0 - memory.high_watermark) * memory.headroom_bytes


def cut_budget(budget: int, *, frozen: bool) -> int:
    """The budget after pressure, in its own unit: half, once; a frozen budget stays."""
    return budget if frozen else budget // 2


def retraction_order(requests: Iterable[HeldKv]) -> list[str]:
    """The ids of the requests in the order in which they give their memory back: the youngest first, since least was
    spent on it."""
    return [request.request_id for request in sorted(requests, key=lambda request: -request.arrived_ns)]
