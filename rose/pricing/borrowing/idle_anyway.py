"""Would the fleet have existed without the leases? What device time could have been avoided if not, dollars.

The price book states a probability, by stretch between price changes; a decision to keep a device for lending says of a
span that it would not (`scale_down`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rose.pricing.borrowing.scale_down import Span
from rose.pricing.borrowing.terms import Parts, Stretches, add
from rose.pricing.charges.measured import SharedTime
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


def cut(spans: Iterable[Span], shared: Iterable[SharedTime]) -> list[tuple[Span, Fraction]]:
    """The spans, cut at the hours in which others held the device as well, and the run's part of each piece."""
    hours: dict[str, dict[int, Fraction]] = {}
    for time in shared:
        hours.setdefault(time.device_id, {})[time.hour_ns] = time.part
    pieces = []
    for span in spans:
        at_ns = span.from_ns
        for hour_ns, part in sorted(hours.get(span.device_id, {}).items()):
            from_ns, to_ns = max(at_ns, hour_ns), min(span.to_ns, hour_ns + NS_PER_HOUR)
            if from_ns < to_ns:
                pieces += [(Span(span.device_id, at_ns, from_ns), Fraction(1))] if at_ns < from_ns else []
                pieces.append((Span(span.device_id, from_ns, to_ns), part))
                at_ns = to_ns
        pieces += [(Span(span.device_id, at_ns, span.to_ns), Fraction(1))] if at_ns < span.to_ns else []
    return pieces


def billed(lent: Iterable[Row], shared: Iterable[SharedTime], stretches: Stretches) -> list[Row]:
    """Borrowed time that is billed to the run, `ns`, by lease, class and stretch: all but what others pay for.

    `lent` are rows of `lent_time`, `shared` the hours in which others held the devices as well.
    """
    borrowed: list[Row] = [
        {**row, "segment": segment, "ns": times["rollout_ns"]}
        for row in lent
        for segment, times in stretches.divide(row, "rollout_ns")
    ]
    by_others: list[Row] = [
        {
            "lease_id": time.lease_id,
            "device_class": time.device_class,
            "segment": stretches.number_at(time.hour_ns),
            "ns": -time.others_ns,
        }
        for time in shared
        if time.bucket == "rollout"
    ]
    return borrowed + by_others


def avoidable(
    borrowed: Iterable[Row],
    gave_back: Iterable[Row],
    stretches: Stretches,
    book: PriceBook,
    gate: Sequence[Fraction],
    pieces: Sequence[tuple[Span, Fraction]] = (),
) -> tuple[Parts, int]:
    """Avoidable dollars by lease, and the leased time in spans that a device would have been given back in.

    `borrowed` is what `billed` gives, `gave_back` rows of `gave_back_time` for these `pieces` of spans.
    """
    parts: Parts = {}

    def charge(row: Row, segment: int, ns: Fraction) -> None:
        add(parts, row["lease_id"], _device_usd(row, segment, ns, stretches, book))

    if not all(share == 1 for share in gate):
        for row in borrowed:
            charge(row, row["segment"], (1 - gate[row["segment"]]) * row["ns"])
    gave_back_ns = 0
    for row in gave_back:
        if gate[row["segment"]]:
            gave_back_ns += row["ns"]
            charge(row, row["segment"], gate[row["segment"]] * pieces[row["span"]][1] * row["ns"])
    return parts, gave_back_ns


def unstated(borrowed: Iterable[Row], stretches: Stretches, book: PriceBook, silent: frozenset[int]) -> Fraction:
    """Amortized price of what was borrowed, by `billed`, while the book states nothing of the fleet without leases."""
    return sum(
        (_device_usd(row, row["segment"], row["ns"], stretches, book) for row in borrowed if row["segment"] in silent),
        Fraction(0),
    )


def _device_usd(row: Row, segment: int, ns: Fraction, stretches: Stretches, book: PriceBook) -> Fraction:
    price = book.device_at(row["device_class"], "serving", stretches.starts_ns[segment])
    return Fraction(price.usd_per_hour) * ns / NS_PER_HOUR
