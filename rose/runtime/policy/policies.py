"""Policies for sharing a device, each a choice of four pure decisions, for the live runtime and replays."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rose.runtime.policy import slack
from rose.runtime.policy.kv import cut_budget
from rose.runtime.policy.lease import BorrowCase, always_borrow, never_borrow, worth_borrowing
from rose.runtime.policy.routing import Placement, TurnFacts, WorkerFacts, place, place_dedicated
from rose.runtime.policy.slack import Decision, StepFacts


@dataclass(frozen=True, slots=True)
class Policy:
    """`place` a turn, `borrow` a device, `admit` a rollout step, `cut` a KV budget. `yields`: running steps yield
    between layers. `guards`: rollouts answer to serving's lateness, memory pressure and priority."""

    place: Callable[[TurnFacts, Iterable[WorkerFacts], int], Placement]
    borrow: Callable[[BorrowCase], bool]
    admit: Callable[[StepFacts], Decision]
    cut: Callable[..., int]
    yields: bool
    guards: bool


def _keep(budget: int, *, frozen: bool) -> int:
    return budget


POLICIES = {
    #: Slack, regret, yields between layers, a budget that is cut under pressure.
    "rose": Policy(place, worth_borrowing, slack.admit, cut_budget, yields=True, guards=True),
    "solo": Policy(place_dedicated, never_borrow, slack.admit_none, _keep, yields=True, guards=True),
    #: Both run whenever they like; the operating system or the GPU divides the device.
    "share_all": Policy(place, always_borrow, slack.admit_any, _keep, yields=False, guards=False),
    "static_split": Policy(place, always_borrow, slack.admit_share, _keep, yields=False, guards=False),
}
NAMES = tuple(POLICIES)  # A policy's index is its number on the arbiter page.


def numbered(number: int) -> Policy:
    """Return the policy of a number; an unknown number lends nothing."""
    return POLICIES[NAMES[number]] if 0 <= number < len(NAMES) else POLICIES["solo"]
