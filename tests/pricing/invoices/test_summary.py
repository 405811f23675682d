from __future__ import annotations

from pathlib import Path

import pytest

from rose.pricing.closing.period import Period
from rose.pricing.invoices import build
from rose.pricing.invoices.summary import summary
from tests.pricing.closing.conftest import DAY_NS
from tests.pricing.invoices.conftest import DAY_NANO, DEARER_DAY_NANO, FIRST, FIRST_ID, SECOND


def test_it_sums_all_invoices_beside_their_close(books: Path) -> None:
    made = build.invoices(books, FIRST)
    whole = summary(made)
    assert whole.total_nano == sum(invoice.total_nano for invoice in made) == 2 * DAY_NANO
    assert whole.later_nano == 2 * (DEARER_DAY_NANO - DAY_NANO)
    assert list(whole.lines) == [
        "2 invoices: $172.80 = charges $172.80",
        f"  the close {FIRST_ID}: $172.80",
        "  posted to it since, on the invoices of the period of the posting: $17.28",
    ]
    euros = summary(build.invoices(books, FIRST, currency="EUR"))
    assert (euros.currency, euros.to_json()["close_nano"]) == ("EUR", 2 * DAY_NANO)
    assert euros.total_nano == round(2 * DAY_NANO * 10_000 / 10_843)


@pytest.mark.long
def test_a_draft_has_no_close(books: Path) -> None:
    period = Period(SECOND.to_ns + DAY_NS, SECOND.to_ns + 3 * DAY_NS)
    (line,) = summary(build.invoices(books, period)).lines
    assert line == "2 invoices: -$17.28 = corrections of earlier periods -$17.28"
