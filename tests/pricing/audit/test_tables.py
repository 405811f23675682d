from __future__ import annotations

from pathlib import Path

from rose.pricing.audit import tables
from rose.pricing.audit.explain import Question, explain
from tests.pricing.closing.conftest import BOOK
from tests.pricing.conftest import shown


def test_an_explanation_is_a_chain_of_lines(fleet: Path) -> None:
    made = explain(fleet, Question(bucket="rollout"), BOOK)
    text = shown(tables.explanation(made, with_events=True))
    assert "$0.900, as the ledger is now  [amortized; USD, live]" in text
    assert "run run, device s0, hour 2026-06-01; 3 charges" in text
    assert "<- price: $3.60 for each hour of h100-sxm" in text
    assert "   re-adds     900,000,000 x 63.8298% (accepted" in text
    assert "and 3 more sums that re-add" in text
    assert "writer test, 6 events, seq 3 to 10, in live/test/000000/" in text
    assert "its hash chain holds" in text
    assert "slices: 3 events" in text
    assert "slices: 3 events" not in shown(tables.explanation(made, with_events=False))
