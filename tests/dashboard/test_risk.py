from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose.pricing.borrowing.report import risk
from rose.pricing.price_books import pricebook


def table(app: Any, column: str) -> Any:
    """The first table of the page that has a column."""
    return next(frame.value for frame in app.dataframe if column in frame.value)


def test_both_answers_come_first_in_words_and_then_the_evidence(
    ended: Path, open_page: Any, page_text: Any, values: Any
) -> None:
    of, app = risk.build(ended), open_page(ended, "risk")
    assert not app.exception
    assert not app.error
    assert of.harm.says in page_text(app)
    assert "is not known: leases were never withheld at random" in of.harm.says
    assert of.compare.in_short in page_text(app)
    assert "Late requests of lent devices and of others are not set side by side" in page_text(app)
    ways = table(app, "cash saved")
    assert dict(zip(ways["way"], ways["95% interval"], strict=True)) | {"borrowed": ""} == {
        **{name: way.cash_saved.short_interval for name, way in of.compare.ways.items() if "loaded" not in name},
        "borrowed": "",
    }
    terms = table(app, "rests on").set_index("term")
    for name, row in of.price.terms.items():
        told = terms.loc[name.replace("_", " ")]
        assert (told["in all"], told["rests on"]) == (row.in_all.short_text, row.rests_on.replace("`", ""))
    assert values(app)["Break-even provision against device time"] == of.provision.break_even.text
    # The example's price book has no penalty for a missed budget.
    assert (values(app)["Accrued"], values(app)["Realised"]) == ("not set", "not set")
    assert "state one, `violation_usd`, in [lending]" in page_text(app)
    flips = table(app, "stops paying at").set_index("what")
    assert (
        flips.loc["charge for a device-hour", "stops paying at"]
        == of.compare.flips["charge for a device-hour"].flips_at.text
    )
    assert "not enough data: 4 windows of 60 s" in page_text(app)
    assert "not enough data" not in "".join(str(ways[column].tolist()) for column in ways)


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
    priced = risk.build(ended)
    monkeypatch.delenv("ROSE_PRICE_BOOK")
    app = open_page(ended, "risk")
    assert not app.exception
    assert priced.harm.says in page_text(app)
    assert values(app)["Missed a latency budget"] == "3.3%"
    assert values(app)["First token, p99"] == "2.6 s"
    assert "48 yields" in page_text(app)
    assert "What borrowing saved" in app.info[-1].value
    assert "there is no price book" in page_text(app)
    assert "$" not in page_text(app)
