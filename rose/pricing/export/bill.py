"""What is exported: the charges of a period or of a close, and the corrections that were posted to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rose.ledger import catalog, verified
from rose.pricing import charges
from rose.pricing.charges.sums import total
from rose.pricing.closing import period, store
from rose.pricing.closing.store import Closed
from rose.pricing.figures import BookFacts, Stamp
from rose.pricing.money import NS_PER_HOUR, PricingError, nano_usd_of
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.run.priced import priced as priced_run


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Charges that are invoiced together: those of the period, or one correction with its signed rows.

    `frame` has the columns of `Charges.frame`, by hour. Billed over [from_ns, to_ns), UTC.
    """

    frame: pl.DataFrame
    book: PriceBook
    #: The close, or the close and the number of its correction; None while the period is open.
    invoice_id: str | None
    from_ns: int
    to_ns: int
    correction: bool = False
    #: Why it was corrected; None for charges that were not.
    reason: str | None = None

    @property
    def total_nano(self) -> int:
        """Nano-dollars; of a correction, what it changes the bill by."""
        return total(self.frame)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLabel:
    """What the ledger calls a run, and its tags (a flat JSON object) if it has any."""

    name: str
    tags_json: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """What one export shows. The first part are the charges, those that follow correct them, in their order."""

    parts: tuple[Part, ...]
    stamp: Stamp
    runs: Mapping[str, RunLabel]
    #: The ledger that it is of.
    root: Path
    #: What borrowing added to the bill of a run, nano-dollars: only known where the bill is one whole run.
    marginal_nano: int | None = None
    #: Of an RL run on a fleet that it shares, its charges fully loaded: with its part of the idle time there.
    loaded: pl.DataFrame | None = None
    #: Whether, and up to when, the ledger was verified, in a line.
    verification: str = ""

    @property
    def charges(self) -> Part:
        """The charges themselves, as they were closed if the period is."""
        return self.parts[0]

    @property
    def corrections(self) -> tuple[Part, ...]:
        """What was posted after the close."""
        return self.parts[1:]

    @property
    def book(self) -> PriceBook:
        """The price book of the charges."""
        return self.charges.book

    @property
    def close_id(self) -> str | None:
        """The close that is exported; None for a period that may still change."""
        return self.charges.invoice_id

    @property
    def rows(self) -> int:
        """Charges and rows of corrections."""
        return sum(part.frame.height for part in self.parts)

    @property
    def total_nano(self) -> int:
        """The bill with its corrections, nano-dollars."""
        return sum(part.total_nano for part in self.parts)


def of_period(
    root: Path,
    book: PriceBook,
    *,
    from_ns: int | None = None,
    to_ns: int | None = None,
    run_id: str | None = None,
    provenance: str | None = None,
    allow_unverified: bool = False,
) -> Bill:
    """The charges of an open period, or of one run; of a whole run, what borrowing added too.

    Raises what `charges.price` raises.
    """
    priced = charges.price(
        root,
        book,
        from_ns=from_ns,
        to_ns=to_ns,
        run_id=run_id,
        provenance=provenance,
        allow_unverified=allow_unverified,
    )
    stamp = Stamp(
        from_ns=priced.from_ns,
        to_ns=priced.to_ns,
        provenance=priced.provenance,
        book=BookFacts.from_book(book),
        verified=priced.verified,
    )
    # A device may join in mid-hour, and weights be sent to it before; charges are of whole hours.
    hours = [period.nanoseconds(hour) for hour in priced.frame["hour"].unique()]
    begin_ns = min([priced.from_ns // NS_PER_HOUR * NS_PER_HOUR, *hours])
    end_ns = max([-(-priced.to_ns // NS_PER_HOUR) * NS_PER_HOUR, *(hour + NS_PER_HOUR for hour in hours)])
    billed = Part(frame=priced.frame, book=book, invoice_id=None, from_ns=begin_ns, to_ns=end_ns)
    whole_run = run_id is not None and from_ns is None and to_ns is None
    marginal_nano = None
    if whole_run:
        with priced_run(root, run_id, book, allow_unverified) as run:
            marginal_nano = nano_usd_of(run.borrow.usd)
    return Bill(
        parts=(billed,),
        stamp=stamp,
        runs=_runs(root),
        root=root,
        marginal_nano=marginal_nano,
        loaded=None if priced.fleet is None else priced.fully_loaded(),
        verification=verified.text(root),
    )


def of_close(root: Path, close_id: str, *, allow_unverified: bool = False) -> Bill:
    """A closed period with its corrections, each billed in the month it was posted in.

    Raises PricingError for a close that there is none of, that is not what was frozen, or of which a posting was made
    from a ledger that did not verify (unless `allow_unverified`).
    """
    return of_closed(root, store.read(root, close_id), allow_unverified=allow_unverified)


def of_closed(root: Path, closed: Closed, *, allow_unverified: bool = False) -> Bill:
    """The same of a close that was read already."""
    if not closed.verified and not allow_unverified:
        raise PricingError(
            f"{closed.close_id} was made from a ledger that did not verify; `--allow-unverified` exports it, marked so"
        )
    first, *later = closed.posted
    columns = closed.charges.frame.columns
    parts = [
        Part(
            frame=closed.charges.frame,
            book=closed.book,
            invoice_id=closed.close_id,
            from_ns=first.from_ns,
            to_ns=first.to_ns,
        )
    ]
    for posting in later:
        month = period.month_at(posting.posted_ns)
        parts.append(
            Part(
                frame=closed.corrections.filter(pl.col("correction") == posting.number).select(columns),
                book=store.book_of(root, posting),
                invoice_id=f"{closed.close_id}/{posting.number}",
                from_ns=month.from_ns,
                to_ns=month.to_ns,
                correction=True,
                reason=posting.reason,
            )
        )
    return Bill(parts=tuple(parts), stamp=closed.stamp, runs=_runs(root), root=root, verification=verified.text(root))


def _runs(root: Path) -> dict[str, RunLabel]:
    with catalog.connect(root) as connection:
        rows = connection.execute("SELECT run_id, name, tags_json FROM run").fetchall()
    return {run_id: RunLabel(name=name, tags_json=tags) for run_id, name, tags in rows}
