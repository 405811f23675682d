from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from rose.pricing.annotations import feedback
from rose.pricing.annotations.feedback import Subject
from rose.pricing.closing.period import of_day
from rose.pricing.money import PricingError
from rose.pricing.watch import anomaly
from tests.pricing.closing.conftest import BOOK

ODD = Subject("live", date(2026, 6, 15), "idle")


def test_the_last_word_holds_until_it_is_withdrawn(weeks: Path) -> None:
    assert feedback.load(weeks) == {}
    feedback.judge(weeks, ODD, "unexpected", "who ran this?", by="ann")
    last = feedback.judge(weeks, ODD, "expected", "a demo", by="ben")
    assert feedback.load(weeks) == {ODD: last}
    assert last.text.startswith("expected (ben, ")
    assert feedback.withdraw(weeks, ODD, "it was not", by="ann") == last
    assert feedback.load(weeks) == {}
    with pytest.raises(PricingError, match=r"nobody judged idle of 2026-06-15 \(live\)"):
        feedback.withdraw(weeks, ODD, "again")


def test_another_verdict_and_no_reason_are_refused(weeks: Path) -> None:
    with pytest.raises(PricingError, match="'fine' is no verdict; give expected, unexpected, wrong"):
        feedback.judge(weeks, ODD, "fine", "x")
    with pytest.raises(PricingError, match="reason is empty"):
        feedback.judge(weeks, ODD, "wrong", "")


def test_an_anomaly_is_found_with_what_was_said_of_it(weeks: Path) -> None:
    said = feedback.judge(weeks, ODD, "expected", "a demo", by="ben")
    found = anomaly.find(weeks, of_day(ODD.day), BOOK)
    judgements = {one.subject: one.judgement for one in found.anomalies}
    assert judgements.pop(ODD) == said
    assert set(judgements.values()) == {None}
    # Of another provenance it would be another one.
    assert feedback.load(weeks).get(ODD._replace(provenance="simulated")) is None
