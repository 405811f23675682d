"""What a meter reads of a device, and what reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rose.events import NOT_MEASURED


class UnreadableError(Exception):
    """The device cannot be read now; the message says why. It may be readable later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Figures of [t0_ns, t1_ns), monotonic. The other fields are those of `rose.events.Power`, with its units."""

    t0_ns: int
    t1_ns: int
    power_mw: int | None = None
    source: str = NOT_MEASURED
    energy_mj: int | None = None
    package_energy_mj: int | None = None
    busy_share: float | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    clock_reasons: str | None = None
    mig_instances: int | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        assert self.t0_ns <= self.t1_ns


class Instrument(Protocol):
    """Reads one device. Used by one thread; any method but `close` may raise UnreadableError."""

    @property
    def sample_s(self) -> float | None:
        """How often `sample` wants to be called between two readings, seconds; None: not at all."""

    def open(self) -> int:
        """Find the device; returns the time from which the first reading counts, monotonic nanoseconds."""

    def sample(self) -> None:
        """Take note of what is needed between two readings."""

    def read(self) -> Reading:
        """What the device did since the reading before, or since `open`."""

    def close(self) -> None:
        """Let go of the device; it can be opened again."""
