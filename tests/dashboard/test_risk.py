from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose.pricing.borrowing import report
from rose.pricing.borrowing.report import risk
from rose.pricing.borrowing.report.alternatives import PER_HOUR
from rose.pricing.borrowing.report.provision import BREAK_EVEN_TIME
from rose.pricing.price_books import pricebook
from rose.pricing.run.priced import priced


def table(app: Any, column: str) -> Any:
    """The first table of the page that has a column."""
    return next(frame.value for frame in app.dataframe if column in frame.value)


def test_both_answers_come_first_in_words_and_then_the_evidence(
    ended: Path, open_page: Any, page_text: Any, values: Any
) -> None:
    with priced(ended) as run:
        made = report.sections(run)
    app = open_page(ended, "risk")
    assert not app.exception
    assert not app.error
    assert made["risk"].text("says") in page_text(app)
    assert "is not known: leases were never withheld at random" in made["risk"].text("says")
    assert made["risk"].text("saves") in page_text(app)
    assert "Late requests of lent devices and of others are not set side by side" in page_text(app)
    bill = made["compare"].table("bill").plain()
    ways = table(app, "cash saved")
    assert list(ways["way"]) == [row[0] for row in (*bill.rows, *bill.footer)]
    assert list(ways["cash saved"]) == [row["cash saved"] or "" for row in bill.records()]
    terms = made["price"].table("terms").plain()
    told = table(app, "term")
    for column in ("term", "in all", "per device-hour"):
        assert list(told[column]) == [row[column] or "" for row in terms.records()]
    break_even = made["provision"].figure("totals", BREAK_EVEN_TIME)
    assert values(app)["Break-even provision against device time"] == break_even.text
    # The example's price book has no penalty for a missed budget.
    assert (values(app)["Accrued"], values(app)["Realised"]) == ("not set", "not set")
    assert "state one, `violation_usd`, in [lending]" in page_text(app)
    flip = made["compare"].figure("flips", PER_HOUR, "stops paying at")
    flips = table(app, "stops paying at").set_index("what")
    assert flips.loc[PER_HOUR, "stops paying at"] == flip.marked_text
    assert "not enough data: 4 windows of 60 s" in page_text(app)


@pytest.mark.long
def test_where_borrowing_did_not_pay_that_is_said_first(
    ended: Path, tmp_path: Path, open_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "dear.toml"
    book.write_text(pricebook.load("example").text.replace("usd_per_gb = 0.02", "usd_per_gb = 900"))
    monkeypatch.setenv("ROSE_PRICE_BOOK", str(book))
    app = open_page(ended, "risk")
    assert not app.exception
    assert "Borrowing was NOT worth it, against dedicated devices" in app.error[0].value


@pytest.mark.long
def test_harm_needs_no_prices_and_the_rest_says_that_it_does(
    ended: Path, open_page: Any, page_text: Any, values: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK")
    app = open_page(ended, "risk")
    assert not app.exception
    assert risk.says(risk.without_prices(ended, "run")) in page_text(app)
    assert values(app)["Missed a latency budget"] == "3.3%"
    assert values(app)["First token, p99"] == "2.6 s"
    assert "48 yields" in page_text(app)
    assert "What borrowing saved" in app.info[-1].value
    assert "there is no price book" in page_text(app)
    assert "$" not in page_text(app)
