from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose.clock import utc_us
from rose.ledger.approvals import holds, proposals, records, state
from rose.ledger.approvals.proposals import ApprovalNeededError
from rose.ledger.layout import LedgerError
from rose.ledger.rules import Rules, set_rules

RETAIN = Rules(approve=frozenset({"retain"}))


def test_a_hold_names_a_run_or_a_period(root: Path) -> None:
    for wrong in ({}, {"run_id": "r", "since_us": 1}, {"since_us": 2, "until_us": 2}):
        with pytest.raises(LedgerError):
            holds.add(root, "case 5", **wrong)
    with pytest.raises(LedgerError, match="reason"):
        holds.add(root, "", run_id="r")
    with pytest.raises(LedgerError, match="no event in this ledger is of run 'rr'; did you mean 'r'"):
        holds.add(root, "case 5", run_id="rr")
    with pytest.raises(LedgerError, match="of run 'june'; there is r"):
        holds.add(root, "case 5", run_id="june")
    assert proposals.load(root).holds == {}
    made = holds.add(root, "case 5", run_id="r")
    assert (made.what, made.added.reason) == ("run r", "case 5")
    assert holds.release(root, made.short_id, "over").released is not None
    with pytest.raises(LedgerError, match="was released by"):
        holds.release(root, made.short_id, "over")


def test_a_release_is_approved_for_the_hold_that_it_names(root: Path, identity: Any) -> None:
    made = holds.add(root, "case 5", run_id="r")
    set_rules(root, RETAIN)
    lie = {"hold": "run of nobody", "reason": "over"}
    body = {"act": "retain", "request": {"release": made.id}, "content": lie, "number": 0, "at_us": utc_us()}
    with records.exclusive(root):
        records.append(root, state.PROPOSED, body)
    (forged,) = proposals.load(root).proposals
    with identity("ben"), pytest.raises(LedgerError, match=f"is not what it says: hold {made.short_id} is on run r"):
        proposals.approve(root, forged)
    proposals.reject(root, forged, "a lie")
    with pytest.raises(ApprovalNeededError) as waits:
        holds.release(root, made.short_id, "case closed")
    with identity("ben"):
        proposals.approve(root, waits.value.proposal.id)
    assert holds.release(root, made.short_id, "case closed").released is not None
