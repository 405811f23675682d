"""When leases are withheld at random, so that what lending costs serving can be measured against time without it.

Time is cut into windows of one length, counted from the Unix epoch. Whether leases are withheld in a window of a device
is drawn from the device's name and the window's number alone: neither load nor what lending did before plays a part,
and whoever has the seed can draw again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

#: Hexadecimal digits of the hash that make a draw: as many bits as a float holds exactly.
_DIGITS = 13


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldoutRules:
    """How often leases are withheld, and for how long. `share` 0: never."""

    share: float
    window_ns: int
    #: After leases begin or cease to be withheld, what was before still shows for so long.
    washout_ns: int
    seed: int

    def __post_init__(self) -> None:
        assert 0 <= self.washout_ns < self.window_ns, f"{self.washout_ns} ns of a window of {self.window_ns} ns"


@dataclass(frozen=True, slots=True)
class HoldoutWindow:
    """[t0_ns, t1_ns) of a device, UTC nanoseconds since the Unix epoch. `draw` below the share withholds leases."""

    t0_ns: int
    t1_ns: int
    draw: float
    withheld: bool


def draw(seed: int, device_id: str, number: int) -> float:
    """A number in [0, 1), uniform over devices and windows: the first 52 bits of SHA-256 of `seed/device_id/number`."""
    digest = hashlib.sha256(f"{seed}/{device_id}/{number}".encode()).hexdigest()
    return float(int(digest[:_DIGITS], 16) / 16**_DIGITS)


def window_at(rules: HoldoutRules, device_id: str, utc_ns: int) -> HoldoutWindow:
    """The window of a device that a UTC time in nanoseconds lies in."""
    number = utc_ns // rules.window_ns
    drawn = draw(rules.seed, device_id, number)
    return HoldoutWindow(number * rules.window_ns, (number + 1) * rules.window_ns, drawn, drawn < rules.share)
