from __future__ import annotations

from decimal import Decimal
from importlib import resources

import pytest

from rose.pricing.price_books import pricebook
from rose.pricing.price_books.entries import PriceBookError
from rose.pricing.price_books.pricebook import PriceBook

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")


def book(lending: str) -> PriceBook:
    return pricebook.parse(EXAMPLE.replace("violation_usd = 0\n", f"violation_usd = 0.001\n{lending}\n"), "prices.toml")


def test_a_curve_of_latency_is_read_exactly() -> None:
    (lending,) = book("latency_usd = [[0.5, 0], [1.0, 0.0005]]").lending_terms
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
