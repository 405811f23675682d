from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from rose.clock import utc_us
from rose.ledger.approvals import holds, proposals, records, state
from rose.ledger.approvals.proposals import ApprovalNeededError
from rose.ledger.approvals.state import EXPIRES_AFTER_US
from rose.ledger.evidence import keys
from rose.ledger.layout import LedgerError
from rose.ledger.rules import Rules, set_rules
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from tests.long_form import usual

RETAIN = Rules(approve=frozenset({"retain"}))
NO_FILES = {"events": 0, "bytes": 0, "runs": [], "parts": []}


def _act(root: Path, done: list[str], request: dict[str, Any] | None = None, *, cut_short: bool = False) -> None:
    with proposals.permitted(root, "retain", request or {"keep_days": 30.0}, lambda: NO_FILES) as grant:
        if cut_short:
            raise InterruptedError
        done.append("no approval needed" if grant is None else grant.proposal.id)


def test_without_a_rule_an_act_asks_nobody(root: Path) -> None:
    done: list[str] = []
    _act(root, done)
    assert done == ["no approval needed"]
    assert proposals.load(root).proposals == {}


def test_a_proposal_whose_content_hides_its_request_is_none(root: Path) -> None:
    lax, strict = Rules().to_json(), RETAIN.to_json()
    body = {"act": "rules", "request": {"rules": lax}, "content": {"rules": strict}, "number": 0, "at_us": utc_us()}
    with records.exclusive(root):
        records.append(root, state.PROPOSED, body)
    stands = proposals.load(root)
    assert stands.proposals == {}
    (fault,) = stands.faults
    assert "its content repeats 'rules' of its request" in fault


def test_an_act_waits_for_a_second_key_and_is_then_done_once(root: Path, identity: Any) -> None:
    set_rules(root, RETAIN)
    done: list[str] = []
    with pytest.raises(ApprovalNeededError, match="was proposed") as waits:
        _act(root, done)
    proposal = waits.value.proposal
    assert waits.value.exit_code == 3
    with pytest.raises(LedgerError, match="would not count"):
        proposals.approve(root, proposal.short_id)
    with identity("ben"):
        proposals.approve(root, proposal.short_id)
        with pytest.raises(LedgerError, match="it is approved"):
            proposals.approve(root, proposal.short_id)
    with pytest.raises(ApprovalNeededError):
        _act(root, done, {"keep_days": 31.0})
    with pytest.raises(InterruptedError):
        _act(root, done, cut_short=True)
    with identity("eve"), pytest.raises(LedgerError, match="it was begun"):
        proposals.reject(root, proposal.id, "too late")
    with identity("eve"):
        _act(root, done)
    assert done == [proposal.id]
    with pytest.raises(ApprovalNeededError, match="was proposed"):
        _act(root, done)
    assert proposals.load(root).faults == []
    assert verify(root).problems == []


def test_what_was_rejected_is_not_done_and_may_be_proposed_again(root: Path, identity: Any) -> None:
    set_rules(root, RETAIN)
    done: list[str] = []
    with pytest.raises(ApprovalNeededError) as waits:
        _act(root, done)
    with identity("ben"):
        proposals.approve(root, waits.value.proposal.id)
    with pytest.raises(LedgerError, match="needs a reason"):
        proposals.reject(root, waits.value.proposal.id, " ")
    proposals.reject(root, waits.value.proposal.id, "a mistake")
    with pytest.raises(ApprovalNeededError, match="was proposed") as again:
        _act(root, done)
    assert again.value.proposal.id != waits.value.proposal.id
    assert done == []


def test_two_who_carry_it_out_at_once_do_it_once(root: Path, identity: Any) -> None:
    set_rules(root, RETAIN)
    done: list[str] = []
    with pytest.raises(ApprovalNeededError) as waits:
        _act(root, done)
    with identity("ben"):
        proposals.approve(root, waits.value.proposal.id)
    refused: list[ApprovalNeededError] = []

    def work() -> None:
        try:
            _act(root, done)
        except ApprovalNeededError as error:
            refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (done, len(refused)) == ([waits.value.proposal.id], 3)
    assert len(proposals.load(root).proposals) == 2, "the others propose it anew, once"


def test_what_stands_is_read_again_only_after_something_was_added(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standing = proposals.Standing(root)
    assert standing.now().in_force == []
    holds.add(root, "case 5", run_id="r")
    assert len(standing.now().in_force) == 1
    monkeypatch.setattr(records, "read", None)
    assert len(standing.now().in_force) == 1


class Hands(RuleBasedStateMachine):
    """Three keys that propose, approve, reject and carry out on a real ledger, while time passes."""

    folder: Path

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.root = self.folder / "ledger"
        shutil.rmtree(self.root, ignore_errors=True)
        self.now_us, self.done = 10**15, []
        self.patch.setattr(proposals, "utc_us", lambda: self.now_us)
        self.under(0)
        LedgerWriter.open(self.root, "w", "r").close()
        set_rules(self.root, RETAIN)

    def under(self, key: int) -> None:
        self.patch.setenv(keys.VARIABLE, str(self.folder / f"key{key}"))

    @rule(key=st.integers(0, 2), days=st.sampled_from([30.0, 400.0]), cut_short=st.booleans())
    def act(self, key: int, days: float, cut_short: bool) -> None:
        self.under(key)
        approved = [one.id for one in self.stands().values() if self.allows(one, days)]
        before = len(self.done)
        try:
            _act(self.root, self.done, {"keep_days": days}, cut_short=cut_short)
            assert self.done[before:][0] in approved
        except ApprovalNeededError:
            assert approved == []
        except InterruptedError:
            assert approved

    def allows(self, proposal: state.Proposal, days: float) -> bool:
        return (
            proposal.request == {"keep_days": days}
            and proposal.id not in self.done
            and proposal.approved is not None
            and proposal.approved.key != proposal.proposed.key
            and proposal.rejected is None
            and self.now_us < proposal.proposed.at_us + EXPIRES_AFTER_US
        )

    @rule(key=st.integers(0, 2), which=st.integers(0, 3), verdict=st.sampled_from(["approve", "approve", "reject"]))
    def judge(self, key: int, which: int, verdict: str) -> None:
        self.under(key)
        if not (names := list(self.stands())):
            return
        name = names[-1 - which % len(names)]
        try:
            if verdict == "approve":
                proposals.approve(self.root, name)
            else:
                proposals.reject(self.root, name, "no")
        except LedgerError:
            pass

    @rule(days=st.integers(1, 4))
    def pass_time(self, days: int) -> None:
        self.now_us += days * state.DAY_US

    def stands(self) -> dict[str, state.Proposal]:
        return proposals.load(self.root).proposals

    def teardown(self) -> None:
        stands = proposals.load(self.root)
        assert stands.faults == []
        assert len(set(self.done)) == len(self.done)
        assert {one.id for one in stands.proposals.values() if one.carried_out is not None} == set(self.done)
        self.patch.undo()


def test_no_sequence_of_hands_does_what_a_second_key_did_not_approve(tmp_path: Path) -> None:
    Hands.folder = tmp_path
    checks = settings(
        max_examples=usual(6, long=200), stateful_step_count=15, suppress_health_check=list(HealthCheck), deadline=None
    )
    run_state_machine_as_test(Hands, settings=checks)
