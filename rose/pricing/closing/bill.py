"""The bill of any period: closed hours as the books have them, corrections included, and open hours priced now."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rose.ledger import catalog, layout
from rose.ledger.examine import Seen
from rose.pricing import charges
from rose.pricing.charges import Charges, NothingChargedError, preconditions
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.period import Period
from rose.pricing.closing.records import Posting, postings
from rose.pricing.figures import BookFacts, Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a period of one provenance is made of: the closes that overlap it, and the time that is not closed."""

    period: Period
    provenance: str
    #: By close, in order of closing: the close and its corrections.
    posted: dict[str, list[Posting]]
    open: list[Period]

    def priced_by(self, book: PriceBook | None) -> tuple[tuple[Period, Posting | PriceBook], ...]:
        """Each part of the period in order, with what priced it last; `book` priced the open ones."""
        closed = [(own[0].period.within(self.period), own[-1]) for own in self.posted.values()]
        priced: list[tuple[Period, Posting | PriceBook]] = [*closed]
        if book is not None:
            priced += [(gap, book) for gap in self.open]
        return tuple(sorted(priced, key=lambda part: part[0]))


def parts(root: Path, period: Period, provenance: str | None = None, close_id: str | None = None) -> Parts:
    """Return the parts of a period; with `close_id` that close alone counts.

    Raises PricingError for more than one provenance (unless one is chosen), or none; LedgerError.
    """
    every = postings(root)
    if close_id is not None:
        every = {close_id: every[close_id]}
    known = {name: own for name, own in every.items() if own[0].period.overlaps(period)}
    present = {own[0].provenance for own in known.values()}
    if period.without(own[0].period for own in known.values()):
        with catalog.connect(root) as connection:
            set_variables(connection, from_ns=period.from_ns, to_ns=period.to_ns)
            present |= {str(row["provenance"]) for row in rows(connection, "closing/provenances")}
    provenance = one_provenance(root, present, provenance, period)
    posted = {name: own for name, own in known.items() if own[0].provenance == provenance}
    return Parts(
        period=period,
        provenance=provenance,
        posted=posted,
        open=period.without(own[0].period for own in posted.values()),
    )


def open_charges(
    root: Path, made_of: Parts, book: PriceBook, *, allow_unverified: bool = False, seen: Seen | None = None
) -> Iterator[Charges]:
    """Yield the charges of each open part that has some, priced now. Raises what `charges.price` raises."""
    seen = seen or Seen()
    for gap in made_of.open:
        try:
            yield charges.price(
                root,
                book,
                from_ns=gap.from_ns,
                to_ns=gap.to_ns,
                provenance=made_of.provenance,
                allow_unverified=allow_unverified,
                seen=seen,
            )
        except NothingChargedError:
            continue


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """Charges of a period: columns of the charges and `closed` (Boolean), whether the row's hour is closed."""

    frame: pl.DataFrame
    period: Period
    provenance: str
    #: What prices open hours; an example where any hour was priced by one.
    book: BookFacts
    verified: bool
    #: Closes that have a part of the period.
    closes: tuple[str, ...]
    #: Its parts in their order, each with what it was last priced by: a posting, or a book for what is open.
    priced_by: tuple[tuple[Period, Posting | PriceBook], ...] = ()

    @property
    def stamp(self) -> Stamp:
        return Stamp(
            from_ns=self.period.from_ns,
            to_ns=self.period.to_ns,
            provenance=self.provenance,
            book=self.book,
            verified=self.verified,
        )


def bill(
    root: Path,
    period: Period,
    book: PriceBook,
    *,
    provenance: str | None = None,
    allow_unverified: bool = False,
    seen: Seen | None = None,
) -> Bill:
    """The charges of a period; `book` prices its open hours, `seen` is for `verify`.

    Raises PricingError where there is nothing to charge, for more than one provenance (unless one is chosen), and for
    open hours that cannot be priced; PriceBookError; LedgerError.
    """
    root = layout.check(root)
    made_of = parts(root, period, provenance)
    closed = [store.read(root, close_id) for close_id in made_of.posted]
    priced = list(open_charges(root, made_of, book, allow_unverified=allow_unverified, seen=seen))
    frames = [charge_algebra.within(close.frame, period).with_columns(closed=pl.lit(True)) for close in closed]
    frames += [part.frame.with_columns(closed=pl.lit(False)) for part in priced]
    if not frames:
        raise nothing_charged(made_of)
    example = any(close.posted[-1].book.example for close in closed) or (bool(made_of.open) and book.example)
    return Bill(
        frame=charge_algebra.canonical(pl.concat(frames)),
        period=period,
        provenance=made_of.provenance,
        book=dataclasses.replace(BookFacts.from_book(book), example=example),
        verified=all(close.verified for close in closed) and all(part.verified for part in priced),
        closes=tuple(made_of.posted),
        priced_by=made_of.priced_by(book),
    )


def nothing_charged(made_of: Parts) -> NothingChargedError:
    return NothingChargedError(
        f"no device time was provisioned in {made_of.period.label} ({made_of.provenance}), so nothing is charged"
    )


def one_provenance(root: Path, present: set[str], chosen: str | None, period: Period) -> str:
    """The one that is chosen, or the only one present. Raises PricingError for several, or none, which is another thing
    where events of the period were archived."""
    if chosen is not None:
        return chosen
    if len(present) > 1:
        raise PricingError(
            f"{period.label} has charges of different provenance ({', '.join(sorted(present))}); no figure may be made "
            "of both: choose one with --provenance"
        )
    if not present:
        preconditions.refuse_archived_since(root, period.from_ns)
        raise NothingChargedError(f"no run lies in {period.label}, so nothing is charged")
    return present.pop()
