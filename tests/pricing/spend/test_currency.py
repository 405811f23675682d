from __future__ import annotations

import dataclasses
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.closing.period import Period
from rose.pricing.figures import AMORTIZED
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBookError
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.cost import Question, ask
from rose.pricing.spend.currency import Rate, rate, rate_of
from rose.pricing.watch import budget
from tests.pricing.closing.conftest import BILL_NANO, BOOK_TOML, DAY_NS, FIRST_HOUR, HOUR_NS, NEXT_DAY_US, T0_NS

TEXT = (
    BOOK_TOML.replace('currency = "USD"', 'currency = "USD"\nfiscal_start = 2', 1)
    + """
[[exchange_rate]]
currency = "EUR"
usd_per_unit = 1.25
valid_from = 2026-06-01
valid_to = 2026-07-01
source = "central bank"
source_date = 2026-05-29

[[exchange_rate]]
currency = "EUR"
usd_per_unit = 0.9
valid_from = 2026-07-01
source = "central bank"
source_date = 2026-06-30
"""
)
BOOK = pricebook.parse(TEXT, "rates.toml")
JUNE = Period(T0_NS, T0_NS + 30 * DAY_NS)


@pytest.mark.parametrize("tz", ["Pacific/Pago_Pago", "America/New_York", "UTC", "Europe/Berlin", "Asia/Tokyo"])
@pytest.mark.parametrize("period", ["2026-06", "2026-06-30", "2026-06-02..2026-06"])
def test_a_period_of_another_time_zone_takes_no_rate_of_the_month_after_it(tz: str, period: str) -> None:
    june = rate_of(BOOK, "EUR", Calendar(tz).period(period, JUNE.to_ns + 40 * DAY_NS))
    assert june is not None
    assert (june.usd_per_unit, str(june.day)) == (Decimal("1.25"), "2026-06-30")


def test_the_short_day_of_a_zone_takes_its_own_rate_and_an_hour_that_of_its_day() -> None:
    in_march = BOOK.model_copy(
        update={"exchange_rate": [BOOK.exchange_rate[0].model_copy(update={"valid_from": date(2026, 1, 1)})]}
    )
    short = rate_of(in_march, "EUR", Calendar("America/New_York").period("2026-03-08", JUNE.to_ns))
    hour = rate_of(in_march, "EUR", Period(T0_NS, T0_NS + HOUR_NS))
    assert [str(rate and rate.day) for rate in (short, hour)] == ["2026-03-08", "2026-06-01"]


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "rates.toml"
    path.write_text(TEXT)
    return str(path)


def test_the_rate_is_that_of_the_last_day_of_the_period() -> None:
    june = rate_of(BOOK, "EUR", JUNE)
    assert june is not None
    assert (june.usd_per_unit, str(june.day)) == (Decimal("1.25"), "2026-06-30")
    assert june.text == (
        "Converted from USD at 1.25 USD for 1 EUR, the rate for 2026-06-30 in price book by hand 1: central bank, "
        "2026-05-29."
    )
    later = rate_of(BOOK, "EUR", Period(T0_NS, JUNE.to_ns + 13 * HOUR_NS))
    assert later is not None
    assert later.usd_per_unit == Decimal("0.9")
    assert rate_of(BOOK, "USD", JUNE) is None


@pytest.mark.parametrize(("currency", "day"), [("EUR", "2026-05-31"), ("GBP", "2026-05-31"), ("eur", "2026-05-31")])
def test_no_rate_is_an_error_that_names_currency_and_day(currency: str, day: str) -> None:
    with pytest.raises(
        PriceBookError, match=f"no rate of exchange for {currency} on {day} .currencies it has: EUR.; add"
    ):
        rate_of(BOOK, currency, Period(T0_NS - DAY_NS, T0_NS))


@given(st.lists(st.integers(-(10**18), 10**18), max_size=30), st.decimals("0.000001", "99999", places=6))
def test_amounts_sum_to_what_their_sum_is_converted_to(amounts: list[int], usd: Decimal) -> None:
    euro_rate = rate_of(BOOK, "EUR", JUNE)
    assert euro_rate is not None
    euro_rate = dataclasses.replace(euro_rate, usd_per_unit=usd)
    converted = euro_rate.convert_together(amounts)
    assert sum(converted) == euro_rate.convert(sum(amounts))
    assert all(
        abs(amount_in_euros - amount / Fraction(usd)) < 1
        for amount_in_euros, amount in zip(converted, amounts, strict=True)
    )


@pytest.mark.long
def test_a_cost_in_euros_is_the_same_whatever_it_is_divided_by(fleet: Path, book: str) -> None:
    for by in (("team",), ("bucket", "task"), ()):
        made = ask(fleet, Question(period=FIRST_HOUR, by=by), book)
        euros = made.converted(rate(fleet, "EUR", FIRST_HOUR, book))
        assert euros.total.cost_nano == euros.bill_nano == sum(line.cost_nano for line in euros.lines)
        assert euros.total.cost_nano == round(Fraction(BILL_NANO) / Fraction("1.25"))
        document = euros.to_json()
        assert (document["currency"], document["exchange_rate"]["usd_per_unit"]) == ("EUR", "1.25")
        assert made.converted(None) is made


def test_a_forecast_in_euros_has_its_interval_in_them(fleet: Path, book: str) -> None:
    euro_rate = rate(fleet, "EUR", JUNE, book)
    assert isinstance(euro_rate, Rate)
    for row in budget.expected(fleet, JUNE, book, now_us=NEXT_DAY_US):
        euros = row.converted(euro_rate)
        assert euros.spent.value == euro_rate.convert(int(row.spent.value or 0))
        assert (euros.spent.unit, euros.spent.stamp.currency, euros.spent.view) == ("nano_eur", "EUR", AMORTIZED)
        assert euros.spent.text.startswith("EUR ")
        assert row.forecast.value is None or euros.forecast.value == euro_rate.convert(int(row.forecast.value))
