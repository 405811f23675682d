from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rose.ledger import catalog
from rose.ledger.approvals import proposals
from rose.ledger.approvals.proposals import ApprovalNeededError
from rose.ledger.evidence import keys
from rose.ledger.rules import Rules, set_rules
from rose.ledger.verify import verify
from rose.pricing.audit.check import check
from rose.pricing.closing import approval, restate, statement, store
from rose.pricing.closing.records import postings
from rose.pricing.commands.books import books_app
from rose.pricing.commands.price import price_app
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from tests import programs
from tests.long_form import usual
from tests.pricing.closing.conftest import BILL_NANO, BOOK, CLOSE_ID, close, late_slice, write

As = Callable[[str], Any]
ALL = Rules(approve=frozenset({"close", "restate", "prices"}))


def _approved(root: Path, identity: As, act: Callable[[], Any]) -> Any:
    with pytest.raises(ApprovalNeededError) as waits:
        act()
    with identity("ben"):
        proposals.approve(root, waits.value.proposal.id)
    return act()


def test_without_a_rule_a_close_names_one_who(fleet: Path, identity: As) -> None:
    posting = close(fleet).posted[0]
    assert (posting.approval, posting.who) == (None, "ann")


@pytest.mark.long
def test_a_close_is_proposed_with_its_figures_and_posted_once_after_approval(fleet: Path, identity: As) -> None:
    set_rules(fleet, Rules(approve=frozenset({"close"})))
    with pytest.raises(ApprovalNeededError) as waits:
        close(fleet)
    assert postings(fleet) == {}
    request = waits.value.proposal.request
    assert (request["close"], request["cost_nano"], request["provenance"]) == (CLOSE_ID, BILL_NANO, "live")
    with pytest.raises(ApprovalNeededError, match="waits"):
        close(fleet)
    with identity("ben"):
        proposals.approve(fleet, waits.value.proposal.id)
    posting = close(fleet).posted[0]
    assert posting.approval is not None
    assert posting.approval["proposal"] == waits.value.proposal.id
    assert posting.approval["proposed_key"] != posting.approval["approved_key"]
    assert "proposed by" in posting.who
    assert "approved by" in posting.who
    stated = statement.state(store.read(fleet, CLOSE_ID)).to_json()
    assert stated["postings"][0]["approval"] == posting.approval
    with pytest.raises(PricingError, match="lies in"):
        close(fleet)
    assert check(fleet).problems == ()
    assert verify(fleet).problems == []
    assert proposals.load(fleet).proposals[waits.value.proposal.id].result == {"posting": CLOSE_ID}


@pytest.mark.long
def test_other_figures_than_those_approved_are_not_posted(fleet: Path, identity: As) -> None:
    set_rules(fleet, Rules(approve=frozenset({"close"})))
    with pytest.raises(ApprovalNeededError) as waits:
        close(fleet)
    with identity("ben"):
        proposals.approve(fleet, waits.value.proposal.id)
    write(fleet, [late_slice()], "late")
    with pytest.raises(ApprovalNeededError, match="was proposed") as again:
        close(fleet)
    assert again.value.proposal.id != waits.value.proposal.id
    assert postings(fleet) == {}


@pytest.mark.long
def test_a_correction_needs_its_own_approval(closed: Path, identity: As) -> None:
    set_rules(closed, Rules(approve=frozenset({"restate"})))
    assert restate.restate(closed, CLOSE_ID, "nothing new") is None
    write(closed, [late_slice()], "late")
    posting = _approved(closed, identity, lambda: restate.restate(closed, CLOSE_ID, "late slice"))
    assert (posting.number, posting.approval["approved_key"]) != (1, posting.approval["proposed_key"])
    assert restate.restate(closed, CLOSE_ID, "late slice") is None
    assert check(closed).problems == ()


@pytest.mark.long
def test_a_price_book_is_adopted_before_books_are_made_with_it(fleet: Path, identity: As) -> None:
    set_rules(fleet, Rules(approve=frozenset({"prices"})))
    with pytest.raises(PricingError, match="was not adopted"):
        close(fleet)
    adopted = _approved(fleet, identity, lambda: approval.adopt(fleet, BOOK))
    assert approval.adopt(fleet, BOOK) == adopted
    close(fleet)
    other = pricebook.parse(BOOK.text + "\n# another\n", "other.toml")
    with pytest.raises(PricingError, match=r"adopt other\.toml"):
        restate.restate(fleet, CLOSE_ID, "another book", other)


@pytest.mark.long
def test_a_posting_that_nobody_approved_is_named(fleet: Path, identity: As, monkeypatch: pytest.MonkeyPatch) -> None:
    # A program that leaves out what the rules ask for.
    def post(root: Path, posting: Any, contents: Any, rows: bytes) -> Any:
        store.post(root, posting, contents)
        return posting

    set_rules(fleet, Rules(approve=frozenset({"close"})))
    with monkeypatch.context() as patch:
        patch.setattr(approval, "post", post)
        closed = close(fleet, now_us=2 * 10**15)
    assert any("has no approval, which the rules ask for" in problem for problem in check(fleet).problems)
    forged = {"proposal": "ab" * 32, "proposed_by": "a", "proposed_key": "b", "approved_by": "c", "approved_key": "d"}
    posting = dataclasses.replace(closed.posted[0], approval=forged)
    assert [fault for fault in approval.faults(fleet, [posting]) if "which nobody approved" in fault]


#: Closes the hour, and is killed just before the n-th time that it renames a file.
_KILLED = """
import os, signal, sys
os.environ["ROSE_LEDGER_KEY"] = sys.argv[3]
from tests.pricing.closing.conftest import close
from pathlib import Path
left = int(sys.argv[2])
def hook(event, args):
    global left
    if event == "os.rename" and "catalog" not in str(args[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
close(Path(sys.argv[1]))
print(int(sys.argv[2]) - left)
"""


@pytest.mark.long
def test_killed_between_approval_and_close_and_within_it_it_is_closed_once(
    fleet: Path, tmp_path: Path, identity: As
) -> None:
    set_rules(fleet, Rules(approve=frozenset({"close"})))
    with pytest.raises(ApprovalNeededError) as waits:
        close(fleet)
    with identity("ben"):
        proposals.approve(fleet, waits.value.proposal.id)
    key = os.environ[keys.VARIABLE]
    code, text = programs.run(_KILLED, shutil.copytree(fleet, tmp_path / "whole"), 0, key)
    assert code == 0
    for at in range(1, int(text) + 1, usual(23, long=1)):
        copy = Path(shutil.copytree(fleet, tmp_path / f"at{at}"))
        assert programs.run(_KILLED, copy, at, key)[0] == -signal.SIGKILL
        # A catalog that lacks an epoch which was just begun is made anew by the next reader.
        catalog.connect(copy).close()
        if not postings(copy):
            close(copy)
        (posting,) = postings(copy)[CLOSE_ID]
        assert posting.approval is not None
        assert check(copy).problems == (), at
        proposal = proposals.load(copy).proposals[waits.value.proposal.id]
        assert proposal.carried_out is not None, at
        shutil.rmtree(copy)


@pytest.mark.long
def test_the_commands_say_what_waits_and_who_approved(
    fleet: Path, tmp_path: Path, identity: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSE_LEDGER", str(fleet))
    set_rules(fleet, ALL)
    (tmp_path / "prices.toml").write_text(BOOK.text)
    hour = ["--from", "2026-06-01T00", "--to", "2026-06-01T01", "--price-book", str(tmp_path / "prices.toml")]
    monkeypatch.setattr("rose.pricing.closing.close.utc_us", lambda: 2 * 10**15)
    for app, command in ((price_app, ["adopt", str(tmp_path / "prices.toml")]), (books_app, ["close", *hour])):
        waits = CliRunner().invoke(app, command)
        assert (waits.exit_code, waits.stdout) == (3, ""), waits.output
        with identity("ben"):
            proposals.approve(fleet, next(reversed(proposals.load(fleet).proposals)))
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    assert "approved by" in done.stdout
    listed = CliRunner().invoke(books_app, ["list"]).stdout
    assert "approved by" in listed
    document = json.loads(CliRunner().invoke(price_app, ["adopt", str(tmp_path / "prices.toml"), "--json"]).stdout)
    assert document["sha256"] == BOOK.sha256
