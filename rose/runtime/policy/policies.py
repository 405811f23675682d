"""Policies for sharing a device. Each policy is a choice of four pure decisions. The live runtime and replays use
them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rose.runtime.policy import slack
from rose.runtime.policy.kv import cut_budget
from rose.runtime.policy.lease import BorrowCase, always_borrow, never_borrow, worth_borrowing
from rose.runtime.policy.routing import Placement, TurnFacts, WorkerFacts, place, place_dedicated
from rose.runtime.policy.slack import Decision, StepFacts


@dataclass(frozen=True, slots=True)
class Policy:
    """The decisions and flags of a policy. `place` decides where a turn runs, and `borrow` whether a device is
    borrowed. `admit` decides whether a rollout step runs, and `cut` how a KV budget is cut. With `yields`, running
    steps yield between layers. With `guards`, rollouts are limited by late serving, by memory pressure and by serving's
    priority."""

    place: Callable[[TurnFacts, Iterable[WorkerFacts], int], Placement]
    borrow: Callable[[BorrowCase], bool]
    admit: Callable[[StepFacts], Decision]
    cut: Callable[..., int]
    yields: bool
    guards: bool


def _keep(budget: int, *, frozen: bool) -> int:
    return budget


POLICIES = {
    #: It has slack, regret, yields between layers, and a budget that is cut under memory pressure.
    "rose": Policy(place, worth_borrowing, slack.admit, cut_budget, yields=True, guards=True),
    "solo": Policy(place_dedicated, never_borrow, slack.admit_none, _keep, yields=True, guards=True),
    #: With these, both engines run whenever they want. The operating system or the GPU divides the device.
    "share_all": Policy(place, always_borrow, slack.admit_any, _keep, yields=False, guards=False),
    "static_split": Policy(place, always_borrow, slack.admit_share, _keep, yields=False, guards=False),
}
NAMES = tuple(POLICIES)  # A policy's index is its number on the arbiter page.


def numbered(number: int) -> Policy:
    """Return the policy with this number. For an unknown number, return a policy that lends nothing."""
    return POLICIES[NAMES[number]] if 0 <= number < len(NAMES) else POLICIES["solo"]
