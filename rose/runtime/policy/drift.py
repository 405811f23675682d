"""When to look whether an engine still holds the weights it acknowledged, and what to do if it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: An engine that could not be brought back is tried again after this long, longer by as much with each failure.
RETRY_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of the weights of one engine. Times are monotonic nanoseconds."""

    #: Whether it was found to hold a version, bit for bit: it can be held to that.
    held: bool
    #: False from when it was found to hold something else, until it was brought to a version again.
    trusted: bool
    #: When all its weights were last hashed, or that was last tried.
    looked_ns: int
    #: Attempts to bring it back that failed since.
    failures: int = 0


def next_action(standing: Standing, audit_every_ns: int, now_ns: int) -> Literal["audit", "resync", "wait"]:
    """What to do now. `audit_every_ns` 0 never audits, and still brings back an engine that is not trusted.

    A sync hashes all weights when it ends, so it counts as a look: an engine that is synced often is not audited.
    """
    waited_ns = now_ns - standing.looked_ns
    if not standing.trusted:
        return "resync" if waited_ns >= standing.failures * RETRY_NS else "wait"
    if standing.held and 0 < audit_every_ns <= waited_ns:
        return "audit"
    return "wait"
