"""Decides when to audit an engine's weights, and when to restore them."""

from dataclasses import dataclass
from typing import Literal

RETRY_NS = 5_000_000_000  # Wait after a failed resync, times the number of failures.


@dataclass(frozen=True, slots=True)
class Standing:
    held: bool  # Whether it verifiably held a version, bit for bit.
    trusted: bool
    looked_ns: int  # When all weights were last hashed, or when that was last tried.
    failures: int = 0


def next_action(standing: Standing, audit_every_ns: int, now_ns: int) -> Literal["audit", "resync", "wait"]:
    """Return what to do now. A sync counts as an audit, because a sync hashes all weights."""
    waited_ns = now_ns - standing.looked_ns
    if not standing.trusted:
        return "resync" if waited_ns >= standing.failures * RETRY_NS else "wait"
    if standing.held and 0 < audit_every_ns <= waited_ns:
        return "audit"
    return "wait"
