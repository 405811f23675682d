"""The bill of any period: closed hours as the books have them, corrections included, and open hours priced now."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rose.ledger import catalog, layout
from rose.ledger.examine import Seen
from rose.pricing import charges
from rose.pricing.charges import NothingChargedError, preconditions
from rose.pricing.closing import charge_algebra, coverage, store
from rose.pricing.closing.period import Period
from rose.pricing.closing.records import Posting, postings
from rose.pricing.figures import BookFacts, Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """Charges of a period: columns of the charges and `closed` (Boolean), whether the row's hour is closed."""

    frame: pl.DataFrame
    period: Period
    provenance: str
    #: What prices open hours; an example where any hour was priced by one.
    book: BookFacts
    verified: bool
    #: Closes that count in a part of the period.
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
    known = {close_id: posted for close_id, posted in postings(root).items() if posted[0].period.overlaps(period)}
    with catalog.connect(root) as connection:
        set_variables(connection, from_ns=period.from_ns, to_ns=period.to_ns)
        present = {str(row["provenance"]) for row in rows(connection, "closing/provenances")}
    provenance = one_provenance(root, present | {posted[0].provenance for posted in known.values()}, provenance, period)
    parts, verified, example, closes = [], True, False, []
    priced_by: list[tuple[Period, Posting | PriceBook]] = []
    for close_id, counted in coverage.counting(postings(root), provenance).items():
        if not any(part.overlaps(period) for part in counted):
            continue
        closed = store.read(root, close_id)
        hours = coverage.within(closed.frame, period)
        parts += [coverage.within(hours, part).with_columns(closed=pl.lit(True)) for part in counted]
        closes.append(close_id)
        priced_by += [(part.within(period), closed.posted[-1]) for part in counted if part.overlaps(period)]
        verified &= closed.verified
        example |= closed.posted[-1].book.example
    seen = seen or Seen()
    for gap in period.without(posted[0].period for posted in known.values() if posted[0].provenance == provenance):
        priced_by.append((gap, book))
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
        parts.append(priced.frame.with_columns(closed=pl.lit(False)))
        verified &= priced.verified
        example |= book.example
    if not parts:
        raise NothingChargedError(
            f"no device time was provisioned in {period.label} ({provenance}), so nothing is charged"
        )
    return Bill(
        frame=charge_algebra.canonical(pl.concat(parts)),
        period=period,
        provenance=provenance,
        book=dataclasses.replace(BookFacts.from_book(book), example=example),
        verified=verified,
        closes=tuple(closes),
        priced_by=tuple(sorted(priced_by, key=lambda part: part[0])),
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
