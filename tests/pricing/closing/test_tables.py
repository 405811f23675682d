from __future__ import annotations

from pathlib import Path

from rose.pricing.closing import tables
from rose.pricing.closing.records import postings
from rose.pricing.closing.restate import restate
from tests.pricing.closing.conftest import CLOSE_ID, DEARER, NEXT_DAY_US
from tests.pricing.conftest import printed


def test_a_close_and_its_corrections_are_shown(closed: Path) -> None:
    restate(closed, CLOSE_ID, "contract 18 [signed]", DEARER, by="bob", now_us=NEXT_DAY_US + 1)
    listed = printed(tables.closes(postings(closed)))
    assert f"{CLOSE_ID} 2026-06-01 2026-06-01T01 $3.87 1: +$0.360 $4.23" in listed
    text = printed(tables.postings(postings(closed)[CLOSE_ID]))
    assert f"SHA-256 of the close {postings(closed)[CLOSE_ID][0].sha256}" in text
    assert "0 2026-06-02T00:00:00Z $3.87" in text
    assert "+$0.360" in text
    assert "contract 18 [signed] (bob)" in text
