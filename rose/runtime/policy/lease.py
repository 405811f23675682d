"""When to borrow a serving device, and when to give it back before its lease ends."""

from __future__ import annotations

from dataclasses import dataclass

from rose.runtime.policy.slack import Budgets, ServingLoad


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


def must_revoke(load: ServingLoad, budgets: Budgets, now_ns: int) -> bool:
    """Serving is already late on a request that the device still lends time beside: take the device back whole.

    Late is late in fact, not by prediction: a step that serving is in the middle of may still be in time.
    """
    late_first_token = load.waiting > 0 and now_ns > load.earliest_arrival_ns + budgets.ttft_ns
    late_next_token = load.running > 0 and now_ns > load.oldest_token_ns + budgets.tpot_ns
    return late_first_token or late_next_token
