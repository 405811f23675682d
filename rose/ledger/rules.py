"""The rules of a ledger: what its keepers decided, as events of the ledger like everything else."""

from __future__ import annotations

from pathlib import Path

from rose.ledger import layout
from rose.ledger.approvals import proposals, state
from rose.ledger.approvals.values import ACTS, LOG_ACCESS, LogAccess, Rules

__all__ = ["ACTS", "LOG_ACCESS", "LogAccess", "Rules", "rules", "set_rules"]


def rules(root: Path | str) -> Rules:
    """The rules in force in the ledger at `root`; the defaults where none were set.

    An event that is not what `rose ledger rules` writes never loosens them. Raises LedgerError if `root` is no ledger,
    or if the events cannot be read: what they govern must then not be done.
    """
    return proposals.load(root).rules


def set_rules(root: Path | str, new: Rules) -> None:
    """Put `new` in force. Raises ApprovalNeededError where the rules in force ask for an approval, and LedgerError."""
    root = layout.check(root)
    plain = {"rules": new.to_json()}
    proposals.record(root, "rules", plain, state.RULES, plain, {"rules_before": rules(root).to_json()})
