from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st
from pydantic import ValidationError

from rose.pricing.period import day_of, of_day
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.entries import PowerFigure, PriceBookError, TransferPrice, span_of
from rose.pricing.price_books.pricebook import PriceBook

CITED: dict[str, Any] = {"source": "by hand", "source_date": date(2026, 5, 1)}
shares = st.decimals(0, 1, places=3, allow_nan=False).map(abs)


def power(**given_: Any) -> PowerFigure:
    return PowerFigure.model_validate({"class": "h100-sxm", **given_, **CITED})


@pytest.mark.parametrize(
    ("given_", "says"),
    [({"idle_w": 1}, "load_w"), ({}, "idle_w"), ({"idle_w": 680, "load_w": 267}, "must be at least idle_w 680")],
)
def test_power_that_makes_no_sense_is_refused(given_: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        power(**given_)


def test_an_entry_holds_from_its_first_day_until_before_its_last() -> None:
    first, end = date(2026, 3, 1), date(2026, 4, 1)
    price = TransferPrice.model_validate({"route": "r", "usd_per_gb": 1, "valid_from": first, "valid_to": end, **CITED})
    from_ns, to_ns = of_day(first).from_ns, of_day(end).from_ns
    assert [price.holds_at(at) for at in (from_ns - 1, from_ns, to_ns - 1, to_ns)] == [False, True, True, False]
    assert [day_of(at) for at in (from_ns - 1, from_ns, to_ns - 1)] == [date(2026, 2, 28), first, date(2026, 3, 31)]
    always = TransferPrice.model_validate({"route": "r", "usd_per_gb": 1, **CITED})
    assert always.holds_at(-(10**18))
    assert always.holds_at(10**19)


def test_days_in_words() -> None:
    first, end = date(2026, 3, 1), date(2026, 4, 1)
    assert span_of(None, None) == "always"
    assert span_of(first, None) == "from 2026-03-01 on"
    assert span_of(None, end) == "until 2026-04-01"
    assert span_of(first, end) == "2026-03-01 until 2026-04-01"


def book(lending: str) -> PriceBook:
    return pricebook.parse(
        pricebook.load("example").text.replace("violation_usd = 0\n", f"violation_usd = 0.001\n{lending}\n"),
        "prices.toml",
    )


def test_a_curve_of_latency_is_read_exactly() -> None:
    (lending,) = book("latency_usd = [[0.5, 0], [1.0, 0.0005]]").lending
    assert lending.latency_usd == ((Decimal("0.5"), Decimal(0)), (Decimal("1.0"), Decimal("0.0005")))


@pytest.mark.parametrize(
    ("curve", "why"),
    [
        ("[[0.5, 0]]", "latency_usd: .*at least 2 items"),
        ("[0.5, 1.0]", r"latency_usd\.0: .*valid tuple"),
        ("[[0.5, 0], [1.5, 0.0005]]", r"latency_usd\.1\.0: .*less than or equal to 1.*1\.5"),
        ("[[0.5, 0], [0.5, 0.0005]]", "ascending order: 0.5 comes after 0.5"),
        ("[[0.5, 0.0005], [1.0, 0]]", "must not fall: 0 at 1.0 after 0.0005 at 0.5"),
        ("[[0.5, 0], [1.0, -1]]", r"latency_usd\.1\.1: .*greater than or equal to 0"),
        ("[[0.5, 0], [1.0, 0.002]]", "ends at 0.002, above violation_usd 0.001"),
    ],
)
def test_a_curve_that_says_nothing_is_refused(curve: str, why: str) -> None:
    with pytest.raises(PriceBookError, match=why):
        book(f"latency_usd = {curve}")
