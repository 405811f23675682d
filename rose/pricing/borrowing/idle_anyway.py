"""Would the fleet have existed without the leases? What device time could have been avoided if not, dollars.

The price book states a probability, by stretch between price changes; a decision to keep a device for lending says of a
span that it would not (`scale_down`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rose.pricing.borrowing.terms import Parts, Stretches, add
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.price_books.pricebook import PriceBook

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Gate:
    """Probability, by stretch, that the fleet would have existed without the leases: 1 where nothing is stated."""

    stated: list[Fraction]
    low: list[Fraction]
    high: list[Fraction]
    #: Stretches for which the book states none.
    silent: frozenset[int]

    @classmethod
    def over(cls, stretches: Stretches, book: PriceBook) -> Gate:
        ranges = [book.lending_at(at_ns).idle_anyway_range for at_ns in stretches.starts_ns]
        low, stated, high = ([Fraction(1) if ends is None else ends[n] for ends in ranges] for n in range(3))
        return cls(stated, low, high, frozenset(n for n, ends in enumerate(ranges) if ends is None))


def avoidable(
    lent: Iterable[Row], gave_back: Iterable[Row], stretches: Stretches, book: PriceBook, gate: Sequence[Fraction]
) -> tuple[Parts, int]:
    """Avoidable dollars by lease, and the leased time in spans that a device would have been given back in."""
    parts: Parts = {}

    def charge(row: Row, segment: int, ns: Fraction) -> None:
        add(parts, row["lease_id"], _device_usd(row, segment, ns, stretches, book))

    if not all(share == 1 for share in gate):
        for row in lent:
            for segment, times in stretches.divide(row, "rollout_ns"):
                charge(row, segment, (1 - gate[segment]) * times["rollout_ns"])
    gave_back_ns = 0
    for row in gave_back:
        if gate[row["segment"]]:
            gave_back_ns += row["ns"]
            charge(row, row["segment"], gate[row["segment"]] * row["ns"])
    return parts, gave_back_ns


def unstated(lent: Iterable[Row], stretches: Stretches, book: PriceBook, silent: frozenset[int]) -> Fraction:
    """Amortized price of what was borrowed while the book states nothing of the fleet without leases."""
    if not silent:
        return Fraction(0)
    return sum(
        (
            _device_usd(row, segment, times["rollout_ns"], stretches, book)
            for row in lent for segment, times in stretches.divide(row, "rollout_ns") if segment in silent
        ),
        Fraction(0),
    )  # fmt: skip


def _device_usd(row: Row, segment: int, ns: Fraction, stretches: Stretches, book: PriceBook) -> Fraction:
    price = book.device_at(row["device_class"], "serving", stretches.starts_ns[segment])
    return Fraction(price.usd_per_hour) * ns / NS_PER_HOUR
