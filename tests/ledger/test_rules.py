from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rose.ledger.approvals import proposals
from rose.ledger.approvals.proposals import ApprovalNeededError
from rose.ledger.evidence import keys
from rose.ledger.growth import compaction
from rose.ledger.layout import LedgerError
from rose.ledger.rules import Rules, rules, set_rules
from rose.ledger.verify import verify
from tests.ledger.approvals.conftest import by_hand, root

__all__ = ["root"]

STRICT = Rules(log_access="queries", retention_min_days=400, approve=frozenset({"retain", "rules"}))


def test_nothing_is_ruled_where_nobody_ruled(root: Path) -> None:
    assert rules(root) == Rules()
    assert (Rules().log_access, Rules().retention_min_days, Rules().approve) == ("none", 0.0, frozenset())


def test_the_newest_rules_hold_and_are_in_the_chain(root: Path) -> None:
    set_rules(root, Rules(retention_min_days=30))
    set_rules(root, Rules(log_access="exports"))
    assert rules(root) == Rules(log_access="exports")
    assert [found.writer for found in verify(root).writers] == ["controls", "w"]
    assert verify(root).problems == []


def test_compaction_changes_no_rule(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose.ledger.segments.SEGMENTS_PER_EPOCH", 2)
    for days in range(5):
        set_rules(root, Rules(retention_min_days=days))
    assert compaction.compact(root, grace_s=0).files_written
    compaction.compact(root, grace_s=0)
    assert rules(root) == Rules(retention_min_days=4)


@pytest.mark.parametrize(
    "made",
    [
        {"log_access": "all"},
        {"retention_min_days": -1.0},
        {"retention_min_days": float("nan")},
        {"approve": frozenset({"everything"})},
        {"approvers": frozenset({"ann"})},
    ],
)
def test_what_no_rule_can_say_is_refused(made: dict[str, Any]) -> None:
    with pytest.raises(LedgerError, match=next(iter(made))):
        Rules(**made)


LOOSE = Rules().to_json()


@pytest.mark.parametrize(
    "detail",
    [
        "no JSON",
        "[]",
        {"rules": LOOSE},
        {"body": {"rules": LOOSE, "proposal": None, "at_us": 1}, "by": "x@y", "key": "", "signature": ""},
        {"body": {"rules": LOOSE, "proposal": None, "at_us": 1}, "by": "x", "key": "ab" * 32, "signature": "cd" * 64},
        {"body": {"rules": {}, "proposal": None, "at_us": 1}, "by": "x@y", "key": "", "signature": ""},
        {"body": {"rules": None}, "by": None, "key": 5, "signature": None},
    ],
)
@pytest.mark.parametrize("approve", [frozenset(), frozenset({"rules"})])
def test_an_event_made_by_hand_never_loosens(root: Path, detail: Any, approve: frozenset[str]) -> None:
    strict = Rules(log_access="queries", retention_min_days=400, approve=approve)
    set_rules(root, strict)
    by_hand(root, "rules", detail)
    assert rules(root) == strict
    (fault,) = proposals.load(root).faults
    assert "event 1 of writer controls (rules) does not count" in fault


def test_of_an_event_made_by_hand_the_stricter_holds(root: Path) -> None:
    set_rules(root, Rules(log_access="exports", retention_min_days=400))
    body = {"rules": {**LOOSE, "log_access": "queries", "retention_min_days": 30, "approve": ["retain"]}}
    by_hand(root, "rules", {"body": body, "by": "x", "key": "", "signature": ""})
    assert rules(root) == Rules(log_access="queries", retention_min_days=400, approve=frozenset({"retain"}))


def test_a_signed_event_without_the_approval_it_needs_does_not_count(root: Path) -> None:
    set_rules(root, STRICT)
    # What a program would write that leaves out the proposal.
    from rose.ledger.approvals import records

    with records.exclusive(root):
        records.append(root, "rules", {"rules": LOOSE, "proposal": None, "at_us": 1})
    assert rules(root) == STRICT
    assert "ask for the approval" in proposals.load(root).faults[0]


def test_a_change_of_rules_is_a_proposal_where_the_rules_say_so(root: Path, identity: Any) -> None:
    set_rules(root, STRICT)
    with pytest.raises(ApprovalNeededError) as waits:
        set_rules(root, Rules())
    with pytest.raises(ApprovalNeededError, match="waits"):
        set_rules(root, Rules())
    assert rules(root) == STRICT
    with pytest.raises(LedgerError, match="key that proposed it"):
        proposals.approve(root, waits.value.proposal.short_id)
    with identity("ben"):
        proposals.approve(root, waits.value.proposal.short_id)
    assert rules(root) == STRICT, "an approval by itself changes nothing"
    set_rules(root, Rules())
    assert rules(root) == Rules()
    set_rules(root, STRICT)
    with pytest.raises(ApprovalNeededError, match="was proposed"):
        set_rules(root, Rules())
    assert proposals.load(root).faults == []


def test_only_named_approvers_count(root: Path, identity: Any) -> None:
    with identity("eve"):
        eve = keys.load_or_make()
    assert eve is not None
    set_rules(root, Rules(approve=frozenset({"rules"}), approvers=frozenset({eve.public})))
    with pytest.raises(ApprovalNeededError) as waits:
        set_rules(root, Rules())
    with identity("ben"), pytest.raises(LedgerError, match="among the approvers"):
        proposals.approve(root, waits.value.proposal.short_id)
    with identity("eve"):
        proposals.approve(root, waits.value.proposal.short_id)
    set_rules(root, Rules())
    assert rules(root) == Rules()


def test_rules_that_cannot_be_read_are_not_the_defaults(root: Path, tmp_path: Path) -> None:
    set_rules(root, Rules(log_access="exports"))
    set_rules(root, STRICT)
    for damage in ("gone", "cut", "flipped"):
        copy = Path(shutil.copytree(root, tmp_path / damage))
        newest = sorted((copy / "live" / "controls" / "000000").glob("*.parquet"))[-1]
        match damage:
            case "gone":
                shutil.rmtree(copy / "live" / "controls")
            case "cut":
                newest.unlink()
            case _:
                newest.write_bytes(newest.read_bytes().replace(b"PAR1", b"PAR2"))
        with pytest.raises(LedgerError, match="cannot be read"):
            rules(copy)


def test_rules_go_through_json_and_back() -> None:
    assert Rules.from_json(json.loads(json.dumps(STRICT.to_json()))) == STRICT
