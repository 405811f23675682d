from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rose.events import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.audit.check import check
from rose.pricing.closing.period import Period
from rose.pricing.closing.records import INVOICED, postings
from rose.pricing.invoices import build, register
from rose.pricing.money import PricingError
from tests.pricing.closing.conftest import DAY_NS, close
from tests.pricing.invoices.conftest import FIRST, FIRST_ID, OURS, SECOND, SECOND_ID


@pytest.fixture
def root(books: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(books, tmp_path / "ledger"))


def test_what_was_issued_is_on_record_once(root: Path) -> None:
    made = build.invoices(root, FIRST)
    new = register.issue(root, made, by="ann")
    assert [(one.number, one.total_nano) for one in new] == [(one.number, one.total_nano) for one in made]
    assert {one.close_sha256 for one in new} == {postings(root)[FIRST_ID][0].sha256}
    assert {(one.period, one.issued_by, one.overlaps) for one in new} == {(FIRST, "ann", ())}
    # The same page again is no other invoice, and that of the next period has no hour of it.
    assert register.issue(root, made) == ()
    after = register.issue(root, build.invoices(root, SECOND))
    assert register.issued(root) == (*new, *after)
    assert not check(root).problems


@pytest.mark.long
def test_hours_are_invoiced_to_a_team_once_unless_that_is_meant(root: Path) -> None:
    first = register.issue(root, build.invoices(root, FIRST))
    both = Period(FIRST.from_ns, SECOND.to_ns)
    close(root, both, OURS, now_us=(both.to_ns + 3 * DAY_NS) // 1000)
    made = build.invoices(root, both)
    with pytest.raises(PricingError, match=f"{made[0].number} of {first[0].number}"):
        register.issue(root, made)
    assert register.issued(root) == first
    # Another team has had nothing of it; in another currency it is a second bill.
    with pytest.raises(PricingError, match=f"{FIRST_ID}-chat-EUR of {FIRST_ID}-chat"):
        register.issue(root, build.invoices(root, FIRST, currency="EUR"))
    meant = register.issue(root, made, allow_overlap=True)
    assert [one.overlaps for one in meant] == [(one.number,) for one in first]
    assert register.table(register.issued(root)).columns[-1].name == "overlaps"


def test_a_draft_is_not_issued(root: Path) -> None:
    later = Period(SECOND.to_ns + DAY_NS, SECOND.to_ns + 3 * DAY_NS)
    assert register.issue(root, build.invoices(root, later, now_us=later.to_ns // 1000)) == ()
    assert register.issued(root) == ()


def test_an_invoice_of_a_close_that_there_is_not_is_a_fault(root: Path) -> None:
    (one, *_) = register.issue(root, build.invoices(root, SECOND))
    changed = {
        **one.to_json(),
        "number": "made up",
        "close_sha256": "0" * 64,
        "from_ns": one.from_ns,
        "to_ns": one.to_ns,
    }
    fields = {name: changed.get(name, one.issued_us) for name in register.Issued.__slots__}
    with LedgerWriter.open(root, "closing", "upkeep") as log:
        log.record(Ledger(action=INVOICED, at_us=one.issued_us, detail_json=json.dumps(fields)), durable=True)
    (problem,) = check(root).problems
    assert problem.startswith(f"invoice made up was issued of {SECOND_ID}")
