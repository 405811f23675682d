"""The sums of a period: what its postings came to, and its open hours priced now."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rose.ledger import layout
from rose.ledger.examine import Seen
from rose.pricing.closing import store
from rose.pricing.closing.bill import nothing_charged, open_charges, parts
from rose.pricing.closing.period import Period, naive
from rose.pricing.closing.records import Posting
from rose.pricing.figures import BookFacts, Stamp
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook
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

    Raises PricingError where there is nothing to charge, for more than one provenance (unless one is chosen), and for
    open hours that cannot be priced; PriceBookError; LedgerError.
    """
    root = layout.check(root)
    made_of = parts(root, period, provenance, close_id)
    counted = [posting for own in made_of.posted.values() for posting in own]
    verified, books = all(posting.verified for posting in counted), [_facts(posting) for posting in counted]
    files: list[tuple[str, Path]] = []
    frames: list[tuple[str, pl.DataFrame]] = []
    for posting in counted:
        made, state = sums.of_posting(root, posting, grain), STATES[min(posting.number, 1)]
        if isinstance(made, Path):
            files.append((state, made))
        else:
            frames.append((state, made))
    book = None
    if made_of.open:
        book = choice.choose(
            root, price_book, from_ns=period.from_ns, to_ns=period.to_ns, provenance=made_of.provenance
        )
        books.append(BookFacts.from_book(book))
        for priced in open_charges(root, made_of, book, allow_unverified=allow_unverified, seen=seen):
            verified &= priced.verified
            frames.append(("open", sums.summed(priced.frame, grain)))
    if not files and not frames:
        raise nothing_charged(made_of)
    return Gathered(
        period=period,
        files=tuple(files),
        frames=tuple(frames),
        open=tuple(made_of.open),
        stamp=Stamp(
            from_ns=period.from_ns,
            to_ns=period.to_ns,
            provenance=made_of.provenance,
            book=dataclasses.replace(books[-1], example=any(facts.example for facts in books)),
            verified=verified,
        ),
        closes={close_id: len(own) - 1 for close_id, own in made_of.posted.items()},
        priced_by=made_of.priced_by(book),
    )


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
