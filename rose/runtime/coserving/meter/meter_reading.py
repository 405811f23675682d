"""What reads the meter of a device."""

from __future__ import annotations

from typing import Protocol

from rose.events import Power


class UnreadableError(Exception):
    """The device cannot be read now; the message says why. It may be readable later."""


class Instrument(Protocol):
    """Reads one device. Used by one thread; any method but `close` may raise UnreadableError."""

    @property
    def sample_s(self) -> float | None:
        """How often `sample` wants to be called between two readings, seconds; None: not at all."""

    def open(self) -> int:
        """Find the device; returns the time from which the first reading counts, monotonic nanoseconds."""

    def sample(self) -> None:
        """Take note of what is needed between two readings."""

    def read(self) -> Power:
        """What the device did since the reading before, or since `open`; its times are monotonic."""

    def close(self) -> None:
        """Let go of the device; it can be opened again."""
