"""A host's two clocks. Their offset is read once per run or boot: changes of the wall clock then affect no duration."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

monotonic_ns = time.monotonic_ns


def utc_us() -> int:
    return time.time_ns() // 1000


def both_ns() -> tuple[int, int]:
    """Return the monotonic and the UTC time of one moment in ns, from the quickest of five pairs of readings."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    before, utc, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return (before + after) // 2, utc


@dataclass(frozen=True, slots=True)
class Anchor:
    """UTC minus the monotonic clock of this boot, in nanoseconds."""

    utc_minus_monotonic_ns: int

    @classmethod
    def take(cls) -> Anchor:
        monotonic, utc = both_ns()
        return cls(utc - monotonic)

    def utc_ns(self, monotonic: int) -> int:
        return monotonic + self.utc_minus_monotonic_ns

    def utc_us(self, monotonic: int) -> int:
        return self.utc_ns(monotonic) // 1000

    def now_us(self) -> int:
        """Return the time now in UTC microseconds. Changes of the wall clock do not affect it."""
        return self.utc_us(monotonic_ns())


def iso(us: int) -> str:
    return utc(us * 1000)


def utc(ns: int) -> str:
    """Return a text such as `2026-01-31T09:30:00.123456Z` for nanoseconds since the epoch."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z"
