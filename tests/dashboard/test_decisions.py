from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose.pricing.borrowing.report import alternatives, marginal, provision
from rose.pricing.price_books import pricebook

QUESTIONS = {
    "worth": "Was borrowing worth it?",
    "price": "What is in the price of borrowed time?",
    "together": "And if load and demand rose together?",
}


@pytest.fixture
def ask(open_page: Any) -> Any:
    def ask_(ledger: Path, question: str) -> Any:
        app = open_page(ledger, "decisions")
        app = app.radio[0].set_value(QUESTIONS[question]).run()
        assert not app.exception
        assert not app.error
        return app

    return ask_


def test_whether_borrowing_was_worth_it_is_said_in_words_and_with_intervals(
    ended: Path, open_page: Any, said: Any
) -> None:
    of, app = alternatives.build(ended), open_page(ended, "decisions")
    assert not app.error
    for line in of.says:
        assert line in said(app)
    ways, flips = app.dataframe[0].value, app.dataframe[1].value
    assert dict(zip(ways["instead of borrowing"], ways["95% interval"].fillna(""), strict=True)) == {
        **{name: way.cash_saved.interval_text for name, way in of.ways.items()}, "borrowed": "",
    }  # fmt: skip
    assert flips.set_index("what")["stops paying at"]["break-even provision for a device-hour"] == (
        of.flips[alternatives.PROVISION].flips_at.text
    )
    assert "NOT worth it" not in said(app)


def test_where_borrowing_did_not_pay_that_is_said_first(
    ended: Path, tmp_path: Path, open_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "dear.toml"
    book.write_text(pricebook.load("example").text.replace("usd_per_gb = 0.02", "usd_per_gb = 900"))
    monkeypatch.setenv("ROSE_PRICE_BOOK", str(book))
    app = open_page(ended, "decisions")
    (warning,) = [warning.value for warning in app.warning if "NOT worth it" in warning.value]
    assert "dedicated devices" in warning
    assert "not sharing" not in warning


def test_each_term_stands_with_what_it_rests_on(ended: Path, ask: Any, values: Any) -> None:
    of, app = marginal.build(ended), ask(ended, "price")
    table = app.dataframe[0].value.set_index("term")
    for name, row in of.terms.items():
        told = table.loc[name.replace("_", " ")]
        assert (told["in all"], told["95% interval"], told["rests on"]) == (
            row.in_all.text, row.in_all.interval_text, row.rests_on,
        )  # fmt: skip
    assert table.loc["m, the marginal price"]["in all"] == of.total.in_all.text
    assert values(app)["Break-even for a device-hour"] == provision.build(ended).break_even.text


def test_four_minutes_are_too_short_to_pair(ended: Path, ask: Any, said: Any) -> None:
    assert "Not enough data: 4 windows of 60 s" in said(ask(ended, "together"))
