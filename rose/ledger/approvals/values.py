"""What the rules of a ledger may say, and which of two is the stricter."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rose.ledger.layout import LedgerError

#: Whose events say what is in force.
CONTROLS_WRITER = "controls"
LogAccess = Literal["none", "exports", "queries"]
#: From the one that logs least.
LOG_ACCESS: tuple[LogAccess, ...] = get_args(LogAccess)
#: Acts that may need the approval of a second identity.
ACTS = ("retain", "close", "prices", "restate", "rules")
PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a ledger's keepers decided. The defaults are those of a ledger for which nobody decided anything."""

    #: What is recorded of readers: nothing, exports and verifications, or queries too.
    log_access: LogAccess = "none"
    #: Younger events are never deleted.
    retention_min_days: float = 0.0
    #: The acts that need an approval, some of `ACTS`.
    approve: frozenset[str] = frozenset()
    #: Public keys (64 hex characters) of those who may approve; empty: any key but the proposer's.
    approvers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raises LedgerError for a value that no rule can have."""
        if self.log_access not in LOG_ACCESS:
            raise LedgerError(f"log_access must be one of {', '.join(LOG_ACCESS)}, got {self.log_access!r}")
        if not math.isfinite(self.retention_min_days) or self.retention_min_days < 0:
            raise LedgerError(f"retention_min_days must be a number from 0 on, got {self.retention_min_days!r}")
        for act in self.approve:
            if act not in ACTS:
                raise LedgerError(f"approve may name {', '.join(ACTS)}, got {act!r}")
        for key in self.approvers:
            if not PUBLIC_KEY.fullmatch(key):
                raise LedgerError(f"approvers must be public keys of 64 hexadecimal characters, got {key!r}")

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` gives back equal rules."""
        sets = {"approve": sorted(self.approve), "approvers": sorted(self.approvers)}
        return {**dataclasses.asdict(self), "retention_min_days": float(self.retention_min_days), **sets}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Rules:
        """Raises LedgerError for values that are no rules, or not all of them."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(plain) != names:
            wrong = ", ".join(sorted(names ^ set(plain)))
            raise LedgerError(
                f"rules must have {', '.join(sorted(names))} and nothing else; missing or unknown: {wrong}"
            )
        sets = {name: plain[name] for name in ("approve", "approvers")}
        for name, listed in sets.items():
            if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
                raise LedgerError(f"{name} must be a list of text, got {listed!r}")
        if type(plain["retention_min_days"]) not in (int, float):
            raise LedgerError(f"retention_min_days must be a number, got {plain['retention_min_days']!r}")
        return cls(**{**plain, **{name: frozenset(listed) for name, listed in sets.items()}})

    def stricter(self, other: Rules) -> Rules:
        """The stricter of each rule of the two; who may approve stays as it is here."""
        return Rules(
            log_access=max(self.log_access, other.log_access, key=LOG_ACCESS.index),
            retention_min_days=max(self.retention_min_days, other.retention_min_days),
            approve=self.approve | other.approve,
            approvers=self.approvers,
        )
