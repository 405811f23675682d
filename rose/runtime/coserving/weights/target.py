"""What an engine is to hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rose.runtime.transfer.wire.origin_rules import ANYWHERE, STRICT, OriginRules


@dataclass(frozen=True, slots=True)
class Target:
    """A version of an RL run's weights, and the origin that it is fetched from. `run_id` "": of no run.

    `source` and `route` are what the ledger is told of the way there. `rules` say what may be fetched.
    """

    run_id: str
    version: int
    url: str
    token: str | None = field(default=None, repr=False)
    source: str = "trainer"
    route: str = "loopback"
    rules: OriginRules = STRICT

    @property
    def name(self) -> str:
        """For messages."""
        return f"version {self.version} of run {self.run_id!r}" if self.run_id else f"version {self.version}"


#: Gives the same version, as it is fetched from a host.
Via = Callable[[Target], Target]


def straight(target: Target) -> Target:
    """Return the target as it is: it is fetched from where it was published."""
    return target


def from_anywhere(target: Target) -> Target:
    """Return the target of a caller who chose the origin, which may be anywhere."""
    return replace(target, rules=ANYWHERE)
