"""Credits of a price book: what lowers the bill, the oldest first, and never below zero.

[D] A credit covers the charges of the hours in which it holds: of its team and class, or all. Without a class it covers
the shares of a team too, if it holds for all of the period. What a credit has left is divided among the teams by what
there is to cover, by largest remainder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.closing.period import naive
from rose.pricing.money import nano_usd, split
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.price_books.rules import Credit
from rose.pricing.spend.shared import Share, cost_by_team, held


@dataclass(frozen=True, slots=True)
class Applied:
    """What a credit takes off a team's bill, nano-dollars, below zero; and what it has left at the end of the period.

    One that covers nothing has a row with 0, of its team or of `unallocated`.
    """

    name: str
    team: str
    nano: int
    #: Of the whole credit, the same in each of its rows.
    rest_nano: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Billed:
    """A period, [from_ns, to_ns) UTC, with what was charged and shared in it and the book that says by which rules.

    `frame` has `hour`, `team`, `device_class` and `cost_nano`.
    """

    book: PriceBook
    frame: pl.DataFrame
    shares: tuple[Share, ...]
    from_ns: int
    to_ns: int


def credits(
    book: PriceBook,
    frame: pl.DataFrame,
    shares: Sequence[Share],
    from_ns: int,
    to_ns: int,
    earlier: Sequence[Billed] = (),
) -> tuple[Applied, ...]:
    """The book's credits that hold in [from_ns, to_ns), UTC, applied to its charges and shares, in their order.

    `frame` is as in `Billed`. `earlier` are the periods before, in order, from the first day of the oldest credit on:
    what they took by their own books is gone. Whatever is left out of them is there to be taken again.
    """
    now = Billed(book=book, frame=frame, shares=tuple(shares), from_ns=from_ns, to_ns=to_ns)
    *_, applied = in_turn([*earlier, now])
    return applied


def in_turn(periods: Sequence[Billed]) -> Iterator[tuple[Applied, ...]]:
    """The credits of each of some periods, in order; what one took, the next have no more."""
    taken: Counter[_Key] = Counter()
    for billed in periods:
        applied = _apply(billed, taken)
        for credit, row in applied:
            taken[_key(credit)] -= row.nano
        yield tuple(row for _, row in applied)


_Key = tuple[str, int | None]


def _key(credit: Credit) -> _Key:
    """One of the same name that begins later is another credit."""
    return credit.name, credit.from_ns


def _apply(billed: Billed, taken: Counter[_Key]) -> list[tuple[Credit, Applied]]:
    """The credits of a period, the oldest first, when so much was `taken` of each before it."""
    frame = _between(billed.frame, billed.from_ns, billed.to_ns).with_columns(pl.col("team").fill_null(UNALLOCATED))
    left, of_class = Counter(cost_by_team(frame)), Counter[tuple[str, str]]()
    shared = Counter[str]()
    for share in billed.shares:
        shared[share.team] += share.nano
    left.update(shared)
    applied: list[tuple[Credit, Applied]] = []
    for credit in sorted(billed.book.credit, key=lambda credit: (credit.valid_from, credit.name)):
        begin_ns, end_ns = held(credit, billed.from_ns, billed.to_ns)
        if begin_ns >= end_ns:
            continue
        covered = Counter(cost_by_team(_covered(frame, credit, begin_ns, end_ns)))
        if credit.device_class is not None:
            covered.subtract({team: of_class[team, credit.device_class] for team in covered})
        elif (begin_ns, end_ns) == (billed.from_ns, billed.to_ns):
            covered.update(shared)
        teams = sorted(covered) if credit.team is None else [credit.team]
        room = {team: max(0, min(left[team], covered[team])) for team in teams}
        rest = max(0, nano_usd(credit.usd) - taken[_key(credit)])
        parts = (
            {team: nano for team, nano in split(min(rest, sum(room.values())), room).items() if nano} if room else {}
        )
        for team, nano in parts.items():
            left[team] -= nano
            of_class[team, credit.device_class or ""] += nano
        rest -= sum(parts.values())
        for team, nano in (parts or {credit.team or UNALLOCATED: 0}).items():
            applied.append((credit, Applied(credit.name, team, -nano, rest)))
    return applied


def _covered(frame: pl.DataFrame, credit: Credit, from_ns: int, to_ns: int) -> pl.DataFrame:
    rows = _between(frame, from_ns, to_ns)
    return rows if credit.device_class is None else rows.filter(pl.col("device_class") == credit.device_class)


def _between(frame: pl.DataFrame, from_ns: int, to_ns: int) -> pl.DataFrame:
    return frame.filter(pl.col("hour").is_between(naive(from_ns), naive(to_ns), closed="left"))
