from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from rose.events import Ledger
from rose.ledger.layout import LedgerError
from rose.ledger.verify import CLOSING_WRITER, verify
from rose.ledger.writer import LedgerWriter
from rose.pricing.annotations import notes
from rose.pricing.money import PricingError


def test_a_note_is_kept_by_day_and_removed_by_another_event(fleet: Path) -> None:
    late = notes.add(fleet, "2026-06-03", "  moved to another hall ", by="ann")
    early = notes.add(fleet, "2026-06-01", "vendor's outage")
    assert (late.day, late.text, late.by) == (date(2026, 6, 3), "moved to another hall", "ann")
    assert notes.load(fleet) == [early, late]
    assert notes.remove(fleet, early.note_id, by="ben") == early
    assert notes.load(fleet) == [late]
    (gone, kept) = notes.load(fleet, removed=True)
    assert (gone.removed_by, kept.removed_by) == ("ben", None)
    assert gone.removed_us is not None
    assert gone.removed_us >= gone.at_us
    assert verify(fleet).ok


@pytest.mark.parametrize(
    ("day", "text", "says"),
    [
        ("yesterday", "x", "date 'yesterday' is no day; write it as 2026-11-03"),
        ("2026-06-01", "  ", "text is empty"),
        ("2026-06-01", "x" * 501, "text has 501 characters, and 500 are the most"),
        ("2026-06-01", "one\ntwo", "has a line break or a control character"),
        ("2026-06-01", "\x1b[31mred", "has a line break or a control character"),
    ],
)
def test_what_is_no_note_is_refused(fleet: Path, day: str, text: str, says: str) -> None:
    with pytest.raises(PricingError, match=says):
        notes.add(fleet, day, text)
    assert notes.load(fleet) == []


def test_a_person_has_a_name(fleet: Path) -> None:
    with pytest.raises(PricingError, match="who is empty"):
        notes.add(fleet, "2026-06-01", "x", by=" ")


def test_only_a_note_that_stands_can_be_removed(fleet: Path, tmp_path: Path) -> None:
    made = notes.add(fleet, "2026-06-01", "x")
    notes.remove(fleet, made.note_id)
    with pytest.raises(PricingError, match="there is no note"):
        notes.remove(fleet, made.note_id)
    with pytest.raises(LedgerError):
        notes.add(tmp_path / "nowhere", "2026-06-01", "x")


def test_an_event_that_no_command_wrote_is_passed_over(fleet: Path) -> None:
    made = notes.add(fleet, "2026-06-01", "x")
    details = [{"id": "1"}, {"id": "2", "date": "soon", "text": "x", "by": "eve", "at_us": 1}, ["id"], None]
    with LedgerWriter.open(fleet, CLOSING_WRITER, "ledger") as log:
        for detail in details:
            log.record(Ledger(action=notes.ADDED, detail_json=json.dumps(detail)))
    assert notes.load(fleet) == [made]
