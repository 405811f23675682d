"""Amounts in another currency than that of the prices: at the price book's rate for the last day of the period.

[D] All amounts of an answer are converted together: their sum is converted and rounded once, and they are rounded to
sum to it, by largest remainder. So it is the same whatever it is divided by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from rose.pricing.closing.period import Period
from rose.pricing.figures import BookFacts, Figure, Stamp
from rose.pricing.money import NS_PER_HOUR, rounded
from rose.pricing.price_books import choice
from rose.pricing.price_books.entries import day_of
from rose.pricing.price_books.pricebook import PriceBook

#: What every price is in.
OWN = "USD"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Dollars for one unit of `currency` on `day`, the last day of a period; `book` is its name and version."""

    currency: str
    usd_per_unit: Decimal
    day: date
    source: str
    source_date: date
    book: str

    @property
    def text(self) -> str:
        """For people, beside what was converted."""
        return (
            f"Converted from USD at {self.usd_per_unit:f} USD for 1 {self.currency}, the rate for {self.day} in price "
            f"book {self.book}: {self.source}, {self.source_date}."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; the rate is text, exact."""
        return {
            "currency": self.currency,
            "usd_per_unit": f"{self.usd_per_unit:f}",
            "day": str(self.day),
            "source": self.source,
            "source_date": str(self.source_date),
            "price_book": self.book,
        }

    def convert(self, nano_usd: int) -> int:
        """Whole nano-units, half to even."""
        return round(nano_usd / Fraction(self.usd_per_unit))

    def convert_together(self, nano_usd: Sequence[int]) -> list[int]:
        """Whole nano-units that sum to what the sum is converted to."""
        parts = {place: nano / Fraction(self.usd_per_unit) for place, nano in enumerate(nano_usd)}
        return list(rounded(parts).values())

    def figure(self, figure: Figure) -> Figure:
        """A figure in nano-dollars, with its interval, in this currency."""
        ends = (None if end is None else self.convert(int(end)) for end in (figure.value, figure.low, figure.high))
        value, low, high = ends
        unit = figure.unit.replace("nano_usd", f"nano_{self.currency.lower()}")
        return replace(figure, value=value, low=low, high=high, unit=unit, stamp=self.stamp(figure.stamp))

    def stamp(self, stamp: Stamp) -> Stamp:
        """The stamp of what was converted."""
        return replace(stamp, book=self.facts(stamp.book))

    def facts(self, book: BookFacts) -> BookFacts:
        """The book, as it stands beside converted amounts."""
        return replace(book, currency=self.currency)


def rate_of(book: PriceBook, currency: str, period: Period) -> Rate | None:
    """The rate of a currency for the last day of a period; None for dollars. Raises PriceBookError without one."""
    if currency == OWN:
        return None
    last_ns = last_day_ns(period)
    entry = book.exchange_rate_at(currency, last_ns)
    return Rate(
        currency=currency,
        usd_per_unit=entry.usd_per_unit,
        day=day_of(last_ns),
        source=entry.source,
        source_date=entry.source_date,
        book=f"{book.name} {book.version}",
    )


def last_day_ns(period: Period) -> int:
    """An instant of the UTC day that a period ends with, UTC nanoseconds [D].

    Of a day or more, the day of twelve hours before its end: a month in New York ends on the first of the next one in
    UTC, and its last day is not that one. The shortest day has 23 hours.
    """
    is_whole_day = period.to_ns - period.from_ns >= 23 * NS_PER_HOUR
    return period.to_ns - 1 - (12 * NS_PER_HOUR if is_whole_day else 0)


def rate(
    root: Path,
    currency: str | None,
    period: Period,
    price_book: str | None = None,
    *,
    run_id: str | None = None,
    provenance: str | None = None,
) -> Rate | None:
    """The same of the book that prices a period; None where no currency, or dollars, are asked for.

    Raises PriceBookError, NoPriceBookError, PricingError where runs name different books, and LedgerError.
    """
    if currency is None or currency == OWN:
        return None
    book = choice.choose(
        root, price_book, run_id=run_id, from_ns=period.from_ns, to_ns=period.to_ns, provenance=provenance
    )
    return rate_of(book, currency, period)
