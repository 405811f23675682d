"""When to borrow a serving device, and how a lease lives: granted, renewed, throttled, cut, ended.

`next_change` is the lease machine: facts and a time in, at most one change out. Every change is an event.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BorrowCase:
    """What a borrow is expected to bring and to cost, in nanoseconds of one device."""

    #: How long rollouts are expected to want the device.
    wanted_ns: int
    #: Share of the device's time that serving has left over lately, 0 to 1.
    idle_share: float
    #: Time to bring the rollout engine to the wanted version and into routing.
    switch_ns: int


def worth_borrowing(case: BorrowCase) -> bool:
    """A borrow happens only if the device time it is expected to yield exceeds the time it costs to switch."""
    return case.wanted_ns * case.idle_share > case.switch_ns


def always_borrow(case: BorrowCase) -> bool:
    return case.wanted_ns > 0


def never_borrow(case: BorrowCase) -> bool:
    return False
