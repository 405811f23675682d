from __future__ import annotations

from pathlib import Path

from rose.pricing.closing import store, tables
from rose.pricing.closing.records import postings
from rose.pricing.closing.restate import restate
from rose.pricing.closing.statement import state
from tests.pricing.closing.conftest import CLOSE_ID, DEARER, NEXT_DAY_US
from tests.pricing.conftest import printed


def test_a_close_and_its_corrections_are_shown(closed: Path) -> None:
    restate(closed, CLOSE_ID, "contract 18 [signed]", DEARER, by="bob", now_us=NEXT_DAY_US + 1)
    listed = printed(tables.closes(postings(closed)))
    assert f"{CLOSE_ID} 2026-06-01 2026-06-01T01 $3.87 1: +$0.360 $4.23" in listed
    text = printed(tables.statement(state(store.read(closed, CLOSE_ID), ["team", "bucket"])))
    assert "closed 2026-06-02T00:00:00.000000Z by ann" in text
    assert "contract 18 [signed] (bob)" in text
    assert "Charges by team by bucket [amortized; USD, live]" in text
    assert "chat serving $1.98 46.8% 30 min 00.0 s 0" in text
    assert "closed $3.87 + corrections $0.360 = $4.23" in text
    plain = printed(tables.statement(state(store.read(closed, CLOSE_ID), [], "fully-loaded")))
    assert "[fully loaded; USD, live]" in plain
