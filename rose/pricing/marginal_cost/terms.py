"""The terms of m in dollars, and the stretches: times between two price changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, Self, TypeVar

from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, NS_PER_S, rounded
from rose.pricing.price_books.entries import Entry, Lending
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.uncertainty import Estimate, total

K = TypeVar("K")
E = TypeVar("E")
Row = Mapping[str, Any]
Basis = Literal["measured", "assumed", "partly measured", "price book", "absent"]


@dataclass(frozen=True, slots=True)
class Term:
    usd: Fraction
    basis: Basis
    explained: str
    interval: Interval | None = None  #: 95%, dollars; None where the term is exact, or `no_interval` says why.
    no_interval: str | None = None
    missing: str | None = None  #: Why data is missing: sums then take 0, but no figure may show that 0.

    @property
    def unknown(self) -> str | None:
        return self.explained if self.basis == "absent" else self.missing


def absent(why: str) -> Term:
    """Return a term that sums leave out. It is shown as unknown, never as 0."""
    return Term(Fraction(0), "absent", why)


def by_rate(
    stretches: Stretches, field: str, amounts: Iterable[tuple[int, Fraction]], says: Callable[[Fraction, str], str]
) -> Term:
    """Return a term: the sum of amounts times the rate `field` of the price book's table [lending]. Without a rate, the
    term is absent. `amounts` are pairs (stretch, amount). `says` makes the explanation."""
    rates = [getattr(entry, field) for entry in stretches.lending]
    if None in rates:
        return absent(f"the price book sets no {field}")
    pairs = list(amounts)
    usd = sum((Fraction(rates[segment]) * amount for segment, amount in pairs), Fraction(0))
    explained = says(sum((amount for _, amount in pairs), Fraction(0)), in_turn(f"${rate}" for rate in rates))
    return Term(usd, "measured", explained, by_book([(usd, stretches.lending)]))


def basis_of(bases: Iterable[Basis]) -> Basis:
    kinds = set(bases) - {"absent"}
    if len(kinds - {"price book"}) == 1:
        return (kinds - {"price book"}).pop()
    if not kinds - {"price book"}:
        return "price book" if kinds else "measured"
    return "partly measured"


def range_of(entries: Iterable[Entry]) -> tuple[float, float]:
    """Return the lowest `low_share` and the highest `high_share` of all entries, or (1, 1) if no entry has them."""
    low, high = 1.0, 1.0
    for entry in entries:
        if entry.low_share is not None and entry.high_share is not None:
            low, high = min(low, float(entry.low_share)), max(high, float(entry.high_share))
    return low, high


def by_book(costs: Iterable[tuple[Fraction, Iterable[Entry]]]) -> Interval | None:
    """Return the interval of the sum of `costs`: pairs (dollars, price entries). It is None if no entry has a range."""
    ranged = [(float(usd), range_of(entries)) for usd, entries in costs]
    if all(low == high for _, (low, high) in ranged):
        return None
    return total(Estimate(usd, usd, usd).widened(low, high) for usd, (low, high) in ranged)


def nano_by_key(parts: Mapping[K, Fraction]) -> dict[K, int]:
    """Round dollars to whole nano-dollars by largest remainder. The results sum to the rounded sum."""
    return rounded({key: usd * NANO_USD_PER_USD for key, usd in parts.items()}) if parts else {}


@dataclass(frozen=True, slots=True)
class Stretches:
    book: PriceBook
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def over(cls, book: PriceBook, period_ns: tuple[int, int]) -> Self:
        """Return the stretches of a period. Prices are constant in a stretch. A period of length 0 has one stretch."""
        return cls(book, tuple(book.stretches(*period_ns)) or (period_ns,))

    @property
    def changes_ns(self) -> list[int]:
        return [from_ns for from_ns, _ in self.spans[1:]]

    def prices(self, price_at: Callable[[int], E]) -> list[E]:
        return [price_at(from_ns) for from_ns, _ in self.spans]

    def usd(self, pool: str, times_ns: Mapping[tuple[str, int], Fraction]) -> Fraction:
        """Return the amortized price of device time by (device class, stretch). Raises PriceBookError."""
        priced = ((self.book.device_at(name, pool, self.spans[n][0]), ns) for (name, n), ns in times_ns.items() if ns)
        return sum((Fraction(price.usd_per_hour) * ns / NS_PER_HOUR for price, ns in priced), Fraction(0))

    @property
    def lending(self) -> list[Lending]:
        return self.prices(self.book.lending_at)

    def of_day(self, day: date) -> int:
        return self.number_at(int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * NS_PER_S)

    def number_at(self, at_ns: int) -> int:
        """Return the number of the stretch that contains `at_ns`, or of the nearest stretch."""
        return sum(change <= at_ns for change in self.changes_ns)

    def divide(self, row: Row, *names: str) -> Iterator[tuple[int, dict[str, Fraction]]]:
        """Divide the row's columns `names` among stretches, by time. Yield (stretch number, its part by column)."""
        if row["t0_ns"] is None:
            yield row["segment"], {name: Fraction(row[name]) for name in names}
            return
        t0_ns, t1_ns = row["t0_ns"], row["t1_ns"]
        edges = [t0_ns, *(change for change in self.changes_ns if t0_ns < change < t1_ns), t1_ns]
        for offset, (from_ns, to_ns) in enumerate(pairwise(edges)):
            share = Fraction(to_ns - from_ns, t1_ns - t0_ns)
            yield row["segment"] + offset, {name: share * row[name] for name in names}


def in_turn(prices: Iterable[str]) -> str:
    return " then ".join(dict.fromkeys(prices))
