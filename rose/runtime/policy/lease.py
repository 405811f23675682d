"""When to borrow a serving device, and when to give it back before its lease ends."""

from __future__ import annotations

from dataclasses import dataclass

from rose.runtime.policy.slack import Budgets, ServingLoad, decode_slack_ns, prefill_slack_ns


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
    """Serving is already late on a request that the device still lends time beside: take the device back whole."""
    slacks = (prefill_slack_ns(load, budgets, now_ns), decode_slack_ns(load, budgets, now_ns))
    return any(slack is not None and slack < 0 for slack in slacks)
