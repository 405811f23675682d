"""Policies for sharing a device, used by the live runtime and by replays."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rose.runtime.policy import slack
from rose.runtime.policy.lease import Borrow, always_borrow, never_borrow, worth_borrowing
from rose.runtime.policy.routing import Placement, TurnFacts, WorkerFacts, place, place_dedicated
from rose.runtime.policy.slack import Decision, StepFacts


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy's decisions. With `yields`, running steps yield between layers. With `guards`, rollouts get less while
    serving is late or needs memory."""

    place: Callable[[TurnFacts, Iterable[WorkerFacts], int], Placement]
    borrow: Borrow
    admit: Callable[[StepFacts], Decision]
    yields: bool
    guards: bool


POLICIES = {
    #: It has slack, regret, yields between layers, and a budget that is cut under memory pressure.
    "rose": Policy(place, worth_borrowing, slack.admit, yields=True, guards=True),
    "solo": Policy(place_dedicated, never_borrow, slack.admit_none, yields=True, guards=True),
    #: With these, both engines run whenever they want. The operating system or the GPU divides the device.
    "share_all": Policy(place, always_borrow, slack.admit_any, yields=False, guards=False),
    "static_split": Policy(place, always_borrow, slack.admit_share, yields=False, guards=False),
}
NAMES = tuple(POLICIES)  # A policy's index is its number on the arbiter page.


def numbered(number: int) -> Policy:
    """Return the policy with this number, or one that lends nothing if the number is unknown."""
    return POLICIES[NAMES[number]] if 0 <= number < len(NAMES) else POLICIES["solo"]
