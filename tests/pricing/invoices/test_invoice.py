from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.invoices import build
from rose.pricing.invoices.invoice import Line, order
from tests.pricing.invoices.conftest import SECOND


def test_it_is_plain_values_whose_parts_sum_to_the_total(books: Path) -> None:
    for invoice in build.invoices(books, SECOND):
        document = json.loads(json.dumps(invoice.to_json()))
        parts = ("charges_nano", "corrections_nano", "shared_nano", "credits_nano")
        assert sum(document[part] for part in parts) == document["total_nano"] == invoice.total_nano
        assert sum(line["amount_nano"] for line in document["lines"]) == document["total_nano"]
        assert (document["currency"], document["view"], document["final"]) == ("USD", "amortized", True)
        assert document["close_sha256"] == invoice.close.sha256  # type: ignore[union-attr]


HOUR_NS, CENT = 3600 * 10**9, 10**7


def charge(ns: int, nano: int, amounts: int = 1) -> Line:
    return Line(kind="charge", what="serving", amount_nano=nano, count=ns, unit="device-hours", amounts=amounts)


@pytest.mark.parametrize(
    ("line", "quantity", "price"),
    [
        # What rounding took is not in a price.
        (charge(25_699_947_226, round(2700 * 10**9 * 25_699_947_226 / HOUR_NS) + 1), "0.007139", "2700.00"),
        (charge(1_530_000_000, 1_530_000_000), "0.000425", "3600.00"),
        (charge(7 * HOUR_NS, 7 * 3_607_100_000 + 4, amounts=3), "7.000", "3.6071"),
        # An average of two prices, which gives the amount to the cent.
        (charge(3 * HOUR_NS, 10_000_000_000), "3.000", "3.333"),
        (charge(3000 * HOUR_NS, 10_000_000_000_000), "3000.000", "3.333333"),
        (charge(HOUR_NS, 0), "1.000", "0.00"),
    ],
)
def test_quantity_and_price_as_they_are_shown_give_the_amount(line: Line, quantity: str, price: str) -> None:
    amount, unit_price = line.shown_quantity(CENT), line.shown_price(CENT)
    assert (str(amount), str(unit_price)) == (quantity, price)
    assert abs(amount * unit_price * 10**9 - line.amount_nano) <= CENT  # type: ignore[operator]


@given(st.integers(1, 10**16), st.integers(0, 10**14), st.integers(1, 100))
def test_any_quantity_and_price_give_the_amount(ns: int, nano: int, amounts: int) -> None:
    line = charge(ns, nano, amounts)
    amount, unit_price = line.shown_quantity(CENT), line.shown_price(CENT)
    assert amount is not None
    assert unit_price is not None
    # A million an hour would take more than the nine decimals that an hour is shown with.
    if nano * HOUR_NS < ns * 10**15:
        assert abs(amount * unit_price * 10**9 - nano) <= CENT


def test_a_quantity_is_in_the_unit_beside_it() -> None:
    document = charge(25_699_947_226, 1).to_json()
    assert (document["count"], document["count_unit"], document["unit"]) == (25_699_947_226, "ns", "device-hours")
    assert document["quantity"] == 25_699_947_226 / HOUR_NS


def test_numbers_tell_teams_apart_that_file_names_cannot(books: Path) -> None:
    invoice = build.invoices(books, SECOND)[0]
    # The last has the name of a file that is another's.
    teams = ("a b", "a-b", "a/b", "a--b", "../a", "é", "", "A b", "x/", "x-361757e6")
    numbers = {dataclasses.replace(invoice, team=team).number for team in teams}
    assert len(numbers) == len(teams)
    euros = dataclasses.replace(build.invoices(books, SECOND, currency="EUR")[0], team="chat")
    assert euros.number == "2026-06-03-to-2026-06-05-live-1-chat-EUR"
    assert dataclasses.replace(invoice, team="chat-EUR").number != euros.number
    assert all("/" not in number and ".." not in number and number.isascii() for number in numbers)


def test_what_is_of_no_team_comes_last() -> None:
    assert sorted(["unallocated", "zoo", "chat"], key=order) == ["chat", "zoo", "unallocated"]
