from fractions import Fraction

import pytest

from rose.clock import utc
from rose.pricing.figures import AMORTIZED, BookFacts, Figure, Figures, Stamp
from rose.pricing.price_books.pricebook import load
from rose.pricing.stats.bootstrap import Interval

BOOK = BookFacts.from_book(load("example"))
STAMP = Stamp(from_ns=0, to_ns=1, provenance="simulated", book=BOOK, verified=False)
MAKE = Figures(STAMP)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (56_300_000, "nano_usd/device-hour", "$0.0563"),
        (12_300_000, "ns", "12.3 ms"),
        (2_500_000_000, "ns", "2.500 s"),
        (0.4123, "share", "41.2%"),
        (1.777, "ratio", "1.78"),
        (12_345.6, "ratio", "12,346"),
        (18_000_000_000, "bytes", "18.00 GB"),
        (999, "bytes", "999 B"),
        (1_234_567, "tokens", "1,234,567"),
    ],
)
def test_a_figure_for_people(value: float, unit: str, text: str) -> None:
    assert Figure(value=value, unit=unit, view="count", stamp=STAMP).text == text


def test_a_figure_that_is_not_known_says_why_and_is_never_zero() -> None:
    assert MAKE.part(3, 0).to_json()["value"] is None
    assert MAKE.part(3, 0).text == "not enough data"
    assert MAKE.money(None, AMORTIZED, why="does not apply").text == "does not apply"
    assert MAKE.part(0, 5).value == 0


def test_money_is_whole_nano_dollars_and_its_interval_too() -> None:
    figure = MAKE.money(Fraction(1, 3), AMORTIZED, interval=Interval(low=0.25, high=None))
    assert (figure.value, figure.low, figure.high) == (333_333_333, 250_000_000, None)
    assert figure.short_interval == "$0.250 to unbounded"
    assert MAKE.money(Fraction(1), AMORTIZED).short_interval == "-"


def test_what_goes_with_every_figure() -> None:
    figure = MAKE.amount(7, AMORTIZED).to_json()
    assert (figure["unit"], figure["view"], figure["provenance"]) == ("nano_usd", "amortized", "simulated")
    out = STAMP.to_json()
    assert out["period"] == {"from": "1970-01-01T00:00:00.000000Z", "to": "1970-01-01T00:00:00.000000Z"}
    assert (out["currency"], out["provenance"], out["verified"]) == ("USD", "simulated", False)
    assert (out["price_book"], out["example_prices"]) == (BOOK.text, True)
    assert str(STAMP) == "USD, simulated, UNVERIFIED LEDGER, EXAMPLE PRICES, not yours"
    assert utc(1_780_272_000_123_456_789) == "2026-06-01T00:00:00.123456Z"
