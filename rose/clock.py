"""One clock for a host: monotonic for durations, UTC for the ledger, and a fixed offset between them.

All processes of a run share CLOCK_MONOTONIC (it is system-wide on Linux), so an interval measured in one process
can be compared with one measured in another. The offset to UTC is taken once per run, of a device once per boot of its
host, and handed to every process; stepping the wall clock in between therefore cannot stretch or fold an interval.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

#: Nanoseconds of the host's monotonic clock; only differences mean anything.
monotonic_ns = time.monotonic_ns


def utc_us() -> int:
    """Microseconds since the Unix epoch, UTC."""
    return time.time_ns() // 1000


def both_ns() -> tuple[int, int]:
    """(monotonic, UTC) of the same moment, as near as this host allows: the closest of five pairs of readings.

    Two readings one after the other may be far apart: another thread or process may have its turn in between.
    """
    best: tuple[int, int, int] | None = None
    for _ in range(5):
        before = time.monotonic_ns()
        utc = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, utc)
    assert best is not None
    return best[1], best[2]


@dataclass(frozen=True, slots=True)
class Anchor:
    """The offset that turns a monotonic reading of this host into UTC nanoseconds, until the host boots at most."""

    utc_minus_monotonic_ns: int

    @classmethod
    def take(cls) -> Anchor:
        """Read both clocks now."""
        monotonic, utc = both_ns()
        return cls(utc - monotonic)

    def utc_ns(self, monotonic: int) -> int:
        """UTC nanoseconds of a monotonic reading."""
        return monotonic + self.utc_minus_monotonic_ns

    def utc_us(self, monotonic: int) -> int:
        """UTC microseconds of a monotonic reading."""
        return self.utc_ns(monotonic) // 1000

    def now_us(self) -> int:
        """UTC microseconds of this moment, whatever the wall clock was set to meanwhile."""
        return self.utc_us(monotonic_ns())


def iso(us: int) -> str:
    """`2026-01-31T09:30:00.000000Z` for microseconds since the epoch."""
    return utc(us * 1000)


def utc(ns: int) -> str:
    """`2026-01-31T09:30:00.123456Z` for nanoseconds since the epoch, cut to microseconds."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z"
