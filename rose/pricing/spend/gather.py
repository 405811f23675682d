"""The sums of a period: what its postings came to, and its open hours priced now."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rose.ledger import catalog, layout
from rose.ledger.examine import Seen
from rose.pricing import charges
from rose.pricing.charges import NothingChargedError
from rose.pricing.closing import coverage, store
from rose.pricing.closing.bill import one_provenance
from rose.pricing.closing.period import NS_PER_DAY, Period, naive
from rose.pricing.closing.records import Posting, postings
from rose.pricing.figures import BookFacts, Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.spend import sums

#: What a part of a bill is: as it was closed, corrected since, or priced now.
STATES: tuple[str, ...] = ("closed", "correction", "open")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """Sums of the hours of a period, and of hours around it: what closes have beside it is not cut off.

    `files` and `frames` have the columns of `sums`, by one of STATES.
    """

    period: Period
    files: tuple[tuple[str, Path], ...]
    frames: tuple[tuple[str, pl.DataFrame], ...]
    stamp: Stamp
    #: Closes that have a part of the period, with the number of corrections posted to each.
    closes: Mapping[str, int]
    #: Parts of the period that are not closed.
    open: tuple[Period, ...]
    #: Parts of the period in their order, each with what it was last priced by: a posting, or a book for what is open.
    priced_by: tuple[tuple[Period, Posting | PriceBook], ...]

    def newest_book(self, root: Path) -> PriceBook:
        """Return the book that the period's last hours were last priced by."""
        by = self.priced_by[-1][1]
        return by if isinstance(by, PriceBook) else store.book_of(root, by)

    @property
    def hours(self) -> pl.DataFrame:
        """Cost of each hour of the period and team: `hour`, `team`, `cost_nano` and `closed` (Boolean)."""
        return self.by("team")

    def by(self, *keys: str, amounts: tuple[str, ...] = ("cost_nano",)) -> pl.DataFrame:
        """Return amounts of each hour of the period (its day, of sums by day) by columns of `sums`: `hour`, those, the
        amounts and `closed` (Boolean)."""
        columns = ("hour", *keys, *amounts)
        period = pl.col("hour").is_between(naive(self.period.from_ns), naive(self.period.to_ns), closed="left")
        parts = [
            *((state, pl.scan_parquet(path)) for state, path in self.files),
            *((state, frame.lazy()) for state, frame in self.frames),
        ]
        summed = [
            part.select(columns)
            .filter(period)
            .group_by("hour", *keys)
            .agg(pl.col(amounts).sum())
            .with_columns(closed=pl.lit(state != "open"))
            for state, part in parts
        ]
        return pl.concat(summed).collect()


def gather(
    root: Path,
    period: Period,
    price_book: str | PriceBook | None = None,
    *,
    grain: sums.Grain = "hour",
    provenance: str | None = None,
    allow_unverified: bool = False,
    close_id: str | None = None,
    seen: Seen | None = None,
) -> Gathered:
    """The sums of a period; `price_book` prices hours that are not closed, and is not asked for where all are.

    With `close_id`, the sums are those of that close and its corrections alone. `seen` is for `verify`.

    Raises PricingError where there is nothing to charge, for more than one provenance (unless one is chosen) or
    currency, and for open hours that cannot be priced; PriceBookError; LedgerError.
    """
    root = layout.check(root)
    every = postings(root)
    if close_id is not None:
        every = {close_id: every[close_id]}
    posted, provenance = _posted(root, every, period, provenance)
    gaps = period.without(own[0].period for own in posted.values())
    counting = {
        close_id: counted
        for close_id, counted in coverage.counting(every, provenance).items()
        if close_id in posted and any(part.overlaps(period) for part in counted)
    }
    counted_postings = [posting for close_id in counting for posting in posted[close_id]]
    verified = all(posting.verified for posting in counted_postings)
    books = [_facts(posting) for posting in counted_postings]
    priced_by: list[tuple[Period, Posting | PriceBook]] = [
        (part.within(period), posted[close_id][-1])
        for close_id, parts in counting.items()
        for part in parts
        if part.overlaps(period)
    ]
    files: list[tuple[str, Path]] = []
    frames: list[tuple[str, pl.DataFrame]] = []
    for posting in counted_postings:
        made, state = _counted(root, posting, counting[posting.close_id], grain), STATES[min(posting.number, 1)]
        if isinstance(made, Path):
            files.append((state, made))
        else:
            frames.append((state, made))
    if gaps:
        book = choice.choose(root, price_book, from_ns=period.from_ns, to_ns=period.to_ns, provenance=provenance)
        books.append(BookFacts.from_book(book))
        priced_by += [(gap, book) for gap in gaps]
        seen = seen or Seen()
    for gap in gaps:
        try:
            priced = charges.price(
                root,
                book,
                from_ns=gap.from_ns,
                to_ns=gap.to_ns,
                provenance=provenance,
                allow_unverified=allow_unverified,
                seen=seen,
            )
        except NothingChargedError:
            continue
        verified &= priced.verified
        frames.append(("open", sums.summed(priced.frame, grain)))
    if not files and not frames:
        raise NothingChargedError(
            f"no device time was provisioned in {period.label} ({provenance}), so nothing is charged"
        )
    currencies = {facts.currency for facts in books}
    if len(currencies) > 1:
        raise PricingError(f"{period.label} is in {' and '.join(sorted(currencies))}: ask for each part by itself")
    facts = dataclasses.replace(books[-1], example=any(facts.example for facts in books))
    return Gathered(
        period=period,
        files=tuple(files),
        frames=tuple(frames),
        open=tuple(gaps),
        stamp=Stamp(from_ns=period.from_ns, to_ns=period.to_ns, provenance=provenance, book=facts, verified=verified),
        closes={close_id: len(posted[close_id]) - 1 for close_id in counting},
        priced_by=tuple(sorted(priced_by, key=lambda part: part[0])),
    )


def _counted(root: Path, posting: Posting, counted: Sequence[Period], grain: sums.Grain) -> Path | pl.DataFrame:
    """The sums of a posting, of the hours in which its close counts."""
    if list(counted) == [posting.period]:
        return sums.of_posting(root, posting, grain)
    if grain == "day" and any(ns % NS_PER_DAY for part in counted for ns in (part.from_ns, part.to_ns)):
        rows = sums.frozen(root, posting)
        return sums.summed(pl.concat(coverage.within(rows, part) for part in counted), grain)
    made = sums.of_posting(root, posting, grain)
    kept = pl.read_parquet(made) if isinstance(made, Path) else made
    return pl.concat(coverage.within(kept, part) for part in counted)


def _facts(posting: Posting) -> BookFacts:
    book = posting.book
    return BookFacts(
        name=book.name,
        version=book.version,
        sha256=book.sha256,
        currency=book.currency,
        chosen=choice.FROZEN,
        example=book.example,
    )


def _posted(
    root: Path, every: Mapping[str, list[Posting]], period: Period, provenance: str | None
) -> tuple[dict[str, list[Posting]], str]:
    """The closes that have a part of the period, of the one provenance that it has."""
    known = {close_id: own for close_id, own in every.items() if own[0].period.overlaps(period)}
    present = {own[0].provenance for own in known.values()}
    if period.without(own[0].period for own in known.values()):
        with catalog.connect(root) as connection:
            set_variables(connection, from_ns=period.from_ns, to_ns=period.to_ns)
            present |= {str(row["provenance"]) for row in rows(connection, "closing/provenances")}
    provenance = one_provenance(root, present, provenance, period)
    return {close_id: own for close_id, own in known.items() if own[0].provenance == provenance}, provenance
