"""What a price book covers: the days of each price, and the days on which one is missing that a run may need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from rose.pricing.price_books.entries import TABLES, span_of
from rose.pricing.price_books.pricebook import PriceBook

#: Days [first, end); date.min and date.max stand for no bound.
Days = tuple[date, date]

#: Tables that every priced device-day may need.
_NEEDED = ("electricity", "lending", "tokens")


@dataclass(frozen=True, slots=True)
class Cover:
    """The days on which something has a price, and days without one between them or where a device has its price."""

    table: str
    key: tuple[str, ...]
    days: tuple[Days, ...]
    gaps: tuple[Days, ...]

    @property
    def what(self) -> str:
        """`device h100-sxm`."""
        return " ".join((self.table, *self.key))


def coverage(book: PriceBook) -> list[Cover]:
    """What each price of a book covers, in the order a book is shown. A pool falls back on its class's price."""
    covers: list[Cover] = []
    for table in TABLES:
        for key in dict.fromkeys(entry.key for entry in book.entries(table)):
            keys = {key, key[:1]} if table == "device" else {key}
            days = _union(entry.days for entry in book.entries(table) if entry.key in keys)
            covers.append(Cover(table, key, days, _minus([(days[0][0], days[-1][1])], days)))
    priced = _union(price.days for price in book.device)
    return [
        cover if cover.table not in _NEEDED else Cover(cover.table, cover.key, cover.days, _minus(priced, cover.days))
        for cover in covers
    ]


def warnings(book: PriceBook) -> list[str]:
    """What would stop some run from being priced, or leave a figure out: gaps in dates, classes without power."""
    texts = [
        f"{cover.what} has no price {words(gap)}; a run that needs it on those days is refused"
        for cover in coverage(book)
        for gap in cover.gaps
        if cover.table != "offer"  # days without an offer have nothing to compare with, and refuse nothing
    ]
    powered = {figure.device_class for figure in book.power}
    unpowered = sorted({price.device_class for price in book.device if not price.energy_included} - powered)
    return texts + [
        f"device {name} has no [[power]]; the energy of its rollouts is refused where no meter was read"
        for name in unpowered
    ]


def words(days: Days) -> str:
    """`2026-01-01 until 2026-03-01`."""
    return span_of(None if days[0] == date.min else days[0], None if days[1] == date.max else days[1])


def _union(spans: Iterable[tuple[date | None, date | None]]) -> tuple[Days, ...]:
    """Spans as disjoint ones that do not touch, ascending."""
    merged: list[Days] = []
    for first, end in sorted((first or date.min, end or date.max) for first, end in spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((first, end))
    return tuple(merged)


def _minus(whole: Iterable[Days], taken: Iterable[Days]) -> tuple[Days, ...]:
    """What of `whole` is in no span of `taken`; both are disjoint and ascending."""
    left: list[Days] = []
    taken = list(taken)
    for first, end in whole:
        at = first
        for from_day, to_day in taken:
            if at < min(from_day, end):
                left.append((at, min(from_day, end)))
            at = max(at, to_day)
        if at < end:
            left.append((at, end))
    return tuple(left)
