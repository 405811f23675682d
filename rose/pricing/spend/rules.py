"""What the rules of price books make of a period: its shared costs and credits, month by month.

A UTC month by itself, and within it what each book priced: so a year is the sum of its months. Closed hours are under
the rules of the book that they were last priced by, open hours under those of the book that prices them now.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rose.clock import utc_us
from rose.ledger.examine import Seen
from rose.pricing.charges import NothingChargedError
from rose.pricing.closing import coverage, store
from rose.pricing.closing.period import Period, hour_text, month_at
from rose.pricing.closing.records import Posting
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend.credits import Applied, Billed, in_turn
from rose.pricing.spend.currency import Rate
from rose.pricing.spend.gather import Gathered, gather
from rose.pricing.spend.shared import Share, held, shares

_COLUMNS = ("team", "bucket", "device_class")


@dataclass(frozen=True, slots=True)
class Ruled:
    """The shares and credits of a period, by rule and team, nano-dollars; both empty where no book has a rule."""

    shares: tuple[Share, ...] = ()
    credits: tuple[Applied, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shares or self.credits)

    @property
    def nano(self) -> int:
        """What the rules add to the bill."""
        return sum(share.nano for share in self.shares) + sum(row.nano for row in self.credits)

    @property
    def by_team(self) -> tuple[dict[str, int], dict[str, int]]:
        """Shares, and credits, by team."""
        shared, credits = Counter[str](), Counter[str]()
        for share in self.shares:
            shared[share.team] += share.nano
        for row in self.credits:
            credits[row.team] += row.nano
        return dict(shared), dict(credits)

    def of_team(self, team: str | None) -> Ruled:
        """Those of one team; all where it is None."""
        if team is None:
            return self
        return Ruled(
            tuple(share for share in self.shares if share.team == team),
            tuple(row for row in self.credits if row.team == team),
        )

    def converted(self, rate: Rate) -> Ruled:
        """In another currency: the rows of a rule sum to what their sum is converted to."""
        shared: list[Share] = []
        for name in dict.fromkeys(share.name for share in self.shares):
            rows = [share for share in self.shares if share.name == name]
            nano = rate.convert_together([share.nano for share in rows])
            shared += [dataclasses.replace(share, nano=amount) for share, amount in zip(rows, nano, strict=True)]
        taken = rate.convert_together([row.nano for row in self.credits])
        credits = (
            dataclasses.replace(row, nano=amount, rest_nano=rate.convert(row.rest_nano))
            for row, amount in zip(self.credits, taken, strict=True)
        )
        return Ruled(tuple(shared), tuple(credits))

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """Plain values, amounts in nano-dollars."""
        return {
            "shared_costs": [share.to_json() for share in self.shares],
            "credits": [dataclasses.asdict(row) for row in self.credits],
        }


def of_gathered(
    root: Path,
    gathered: Gathered,
    *,
    allow_unverified: bool = False,
    now_us: int | None = None,
    seen: Seen | None = None,
) -> Ruled:
    """What the rules make of a period that was gathered.

    A credit that began before is followed from its first day on: hours in between that are not closed are priced by
    the book that prices those of the period, else by that of its last hours. `seen` is for `verify`. Amounts a month
    are of the hours that are over at `now_us`. Raises as `gather` does.
    """
    spans = priced_by(root, gathered)
    if not any(book.shared_cost or book.credit for _, book in spans):
        return Ruled()
    until_ns = (utc_us() if now_us is None else now_us) * 1000 // NS_PER_HOUR * NS_PER_HOUR
    billed = _billed(gathered.by(*_COLUMNS), spans, until_ns)
    earlier = _earlier(root, gathered, spans, allow_unverified, until_ns, seen)
    applied = [row for rows in list(in_turn([*earlier, *billed]))[len(earlier) :] for row in rows]
    return Ruled(tuple(_with_until(_summed_shares(billed), spans, until_ns)), _summed_credits(applied))


def priced_by(root: Path, gathered: Gathered) -> list[tuple[Period, PriceBook]]:
    """Parts of the period in order, each of one UTC month, with the book that priced it last."""
    books: dict[str, PriceBook] = {}
    spans: list[tuple[Period, PriceBook]] = []
    for part, by in gathered.priced_by:
        sha256 = by.sha256 if isinstance(by, PriceBook) else by.book.sha256
        book = books[sha256] = books.get(sha256) or _book(root, by)
        for month in _months(part):
            before = spans[-1] if spans else None
            if (
                before
                and before[1] is book
                and before[0].to_ns == month.from_ns
                and month_at(before[0].from_ns) == month_at(month.from_ns)
            ):
                spans[-1] = Period(before[0].from_ns, month.to_ns), book
            else:
                spans.append((month, book))
    return spans


def newest_book(root: Path, gathered: Gathered) -> PriceBook:
    """The book that the period's last hours were last priced by."""
    return _book(root, gathered.priced_by[-1][1])


def _book(root: Path, by: Posting | PriceBook) -> PriceBook:
    return by if isinstance(by, PriceBook) else store.book_of(root, by)


def _months(period: Period) -> Iterable[Period]:
    at_ns = period.from_ns
    while at_ns < period.to_ns:
        end_ns = min(month_at(at_ns).to_ns, period.to_ns)
        yield Period(at_ns, end_ns)
        at_ns = end_ns


def _billed(frame: pl.DataFrame, spans: Sequence[tuple[Period, PriceBook]], until_ns: int) -> list[Billed]:
    billed = []
    for span, book in spans:
        rows = coverage.within(frame, span)
        billed.append(
            Billed(
                book=book,
                frame=rows,
                shares=shares(book, rows, span.from_ns, span.to_ns, until_ns),
                from_ns=span.from_ns,
                to_ns=span.to_ns,
            )
        )
    return billed


def _earlier(
    root: Path,
    gathered: Gathered,
    spans: Sequence[tuple[Period, PriceBook]],
    allow_unverified: bool,
    until_ns: int,
    seen: Seen | None,
) -> list[Billed]:
    """The periods before, from the first day of the oldest credit on that the period still has."""
    begins_ns = gathered.period.from_ns
    first_ns = min(
        (
            credit.from_ns or 0
            for span, book in spans
            for credit in book.credit
            if held(credit, span.from_ns, span.to_ns)[0] < held(credit, span.from_ns, span.to_ns)[1]
        ),
        default=begins_ns,
    )
    if first_ns >= begins_ns:
        return []
    before = Period(first_ns, begins_ns)
    book = next((by for _, by in gathered.priced_by if isinstance(by, PriceBook)), spans[-1][1])
    try:
        charged = gather(
            root,
            before,
            book,
            provenance=gathered.stamp.provenance,
            allow_unverified=allow_unverified,
            seen=seen,
        )
    except NothingChargedError:
        # Costs are shared in it all the same.
        return _billed(gathered.by(*_COLUMNS).clear(), [(month, book) for month in _months(before)], until_ns)
    return _billed(charged.by(*_COLUMNS), priced_by(root, charged), until_ns)


def _summed_shares(billed: Iterable[Billed]) -> tuple[Share, ...]:
    summed: dict[tuple[str, str, str, str], int] = {}
    for share in (share for period in billed for share in period.shares):
        key = share.name, share.team, share.words, share.note
        summed[key] = summed.get(key, 0) + share.nano
    return tuple(Share(name, team, nano, words, note) for (name, team, words, note), nano in sorted(summed.items()))


def _with_until(shared: Iterable[Share], spans: Sequence[tuple[Period, PriceBook]], until_ns: int) -> Iterator[Share]:
    """The shares, with a note on amounts a month of which the period has hours that are still to come."""
    to_come = {
        (rule.name, rule.words)
        for span, book in spans
        for rule in book.shared_cost
        if rule.usd_per_month is not None and held(rule, span.from_ns, span.to_ns)[1] > until_ns
    }
    for share in shared:
        is_cut = (share.name, share.words) in to_come
        note = f"{share.note}, until now ({hour_text(until_ns)} UTC)" if is_cut else share.note
        yield dataclasses.replace(share, note=note)


def _summed_credits(applied: Iterable[Applied]) -> tuple[Applied, ...]:
    """By credit and team. What is left is what was left last; one that covered nothing in a month has no row of it."""
    summed: dict[tuple[str, str], int] = {}
    rest: dict[str, int] = {}
    for row in applied:
        summed[row.name, row.team] = summed.get((row.name, row.team), 0) + row.nano
        rest[row.name] = row.rest_nano
    used = {name for (name, _), nano in summed.items() if nano}
    return tuple(
        Applied(name, team, nano, rest[name])
        for (name, team), nano in sorted(summed.items())
        if nano or name not in used
    )
