from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose.pricing.answers.report.cost_per_correct import answers
from rose.pricing.answers.report.frontier import outlook
from rose.pricing.borrowing.report import alternatives, marginal, provision
from rose.pricing.price_books import pricebook
from rose.pricing.run.priced import priced

QUESTIONS = {
    "worth": "Was borrowing worth it?",
    "price": "What is in the price of borrowed time?",
    "cheaper": "What would make a correct answer cheaper?",
    "verifier": "Which verifier should we use?",
    "together": "And if load and demand rose together?",
}


@pytest.fixture
def ask(open_page: Any) -> Any:
    def ask_(ledger: Path, question: str) -> Any:
        app = open_page(ledger, "risk")
        app = app.radio[0].set_value(QUESTIONS[question]).run()
        assert not app.exception
        assert not app.error
        return app

    return ask_


def test_whether_borrowing_was_worth_it_is_said_in_words_and_with_intervals(
    ended: Path, open_page: Any, said: Any
) -> None:
    of, app = alternatives.build(ended), open_page(ended, "risk")
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
    app = open_page(ended, "risk")
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


def test_levers_are_ranked_and_too_little_data_is_an_answer(ended: Path, ask: Any, values: Any, said: Any) -> None:
    app = ask(ended, "cheaper")
    with priced(ended) as of:
        found, ahead = answers(of), outlook(of)
    assert values(app)["C3, a million answer tokens"] == found.c3.text
    assert found.c3.interval_text in said(app)
    assert list(app.dataframe[1].value["lever"]) == [lever.what for lever in found.levers]
    assert found.in_words in said(app)
    assert list(app.dataframe[2].value["answer"]) == [answer.side for answer in ahead.answers.values()]
    assert "not enough data to tell" in said(app)
    assert ahead.rollouts in said(app)


def test_one_verifier_leaves_nothing_to_choose_and_four_minutes_are_too_short_to_pair(
    ended: Path, ask: Any, said: Any
) -> None:
    app = ask(ended, "verifier")
    assert "Only lake judged the probes" in said(app)
    assert list(app.dataframe[0].value["verifier"]) == ["lake"]
    app = app.radio[0].set_value(QUESTIONS["together"]).run()
    assert not app.exception
    assert "Not enough data: 4 windows of 60 s" in said(app)
