"""Draws the random windows in which nothing is lent. They measure what lending costs."""

import hashlib
from dataclasses import dataclass

_DIGITS = 13


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldoutRules:
    share: float
    window_ns: int
    washout_ns: int  # For this long after a change, the old state still has effects.
    seed: int

    def __post_init__(self) -> None:
        assert 0 <= self.washout_ns < self.window_ns, f"{self.washout_ns} ns of a window of {self.window_ns} ns"


@dataclass(frozen=True, slots=True)
class HoldoutWindow:
    t0_ns: int  # UTC, as the next field.
    t1_ns: int
    draw: float  # Leases are withheld if it is below the share.
    withheld: bool


def draw(seed: int, device_id: str, number: int) -> float:
    """Return a uniform number in [0, 1): the first 52 bits of SHA-256 of `seed/device_id/number`."""
    digest = hashlib.sha256(f"{seed}/{device_id}/{number}".encode()).hexdigest()
    return float(int(digest[:_DIGITS], 16) / 16**_DIGITS)


def window_at(rules: HoldoutRules, device_id: str, utc_ns: int) -> HoldoutWindow:
    number = utc_ns // rules.window_ns
    drawn = draw(rules.seed, device_id, number)
    return HoldoutWindow(number * rules.window_ns, (number + 1) * rules.window_ns, drawn, drawn < rules.share)
