"""The bill of a period: closed hours from the books, with corrections, and open hours at today's prices."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import polars as pl

from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.charges.pricing import COLUMNS, charged_to, refuse_archived_since, total
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.store import Posting, postings
from rose.pricing.figures import BookFacts, Stamp
from rose.pricing.money import NS_PER_HOUR, NothingChargedError, PricingError, nano_usd_of
from rose.pricing.period import Period, month_at, nanoseconds, without
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables

STATES: tuple[str, ...] = ("closed", "correction", "open")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Charges that appear on one invoice: those of a close, those of a correction, or those of open hours."""

    source: Path | pl.DataFrame  # The frozen file or the rows; hours outside `period` do not count.
    period: Period
    posting: Posting | None
    book: PriceBook
    run_id: str | None = None

    @property
    def state(self) -> str:
        return "open" if self.posting is None else STATES[min(self.posting.number, 1)]

    @property
    def correction(self) -> bool:
        return self.state == "correction"

    @property
    def invoice_id(self) -> str | None:
        if self.posting is None:
            return None
        return f"{self.posting.close_id}/{self.posting.number}" if self.correction else self.posting.close_id

    @property
    def billing_period(self) -> Period:
        """Return the period of the invoice. A correction is billed in the month in which it was posted."""
        if self.posting is None:
            return self.period
        return month_at(self.posting.posted_ns) if self.correction else self.posting.period

    @property
    def rows(self) -> pl.LazyFrame:
        source = self.source
        scan = pl.scan_parquet(source, hive_partitioning=False) if isinstance(source, Path) else source.lazy()
        kept = scan.filter(charge_algebra.in_period(self.period)).select(COLUMNS)
        return kept if self.run_id is None else kept.filter(charged_to(self.run_id))

    @cached_property
    def frame(self) -> pl.DataFrame:
        return self.rows.collect()

    @property
    def total_nano(self) -> int:
        return total(self.frame)


@dataclass(frozen=True, kw_only=True)
class Bill:
    """A period's bill, of one provenance. Its parts are the closes with their corrections, then the open hours."""

    ledger: Ledger
    period: Period
    stamp: Stamp  # Its book is the newest part's, and `example` if any part's prices are.
    parts: tuple[Part, ...]
    open: tuple[Period, ...] = ()
    closes: Mapping[str, int] = dataclasses.field(default_factory=dict)  # Corrections by close in the period.
    marginal_nano: int | None = None  # Marginal cost, nano-dollars; None unless the bill is of one run.

    @property
    def charges(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if not part.correction)

    @property
    def corrections(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.correction)

    @property
    def posted(self) -> tuple[Posting, ...]:
        return tuple(part.posting for part in self.parts if part.posting is not None)

    @property
    def close_id(self) -> str | None:
        first = self.parts[0].posting
        whole = len(self.closes) == 1 and not self.open and first is not None and first.period == self.period
        return first.close_id if whole and first is not None else None

    @property
    def total_nano(self) -> int:
        return sum(part.total_nano for part in self.parts)

    @property
    def rows(self) -> pl.LazyFrame:
        return pl.concat([part.rows.with_columns(state=pl.lit(part.state)) for part in self.parts])

    @cached_property
    def frame(self) -> pl.DataFrame:
        """Return the charges plus the corrections. The column `closed` says whether the hour is closed."""
        frames = [part.frame for part in (*reversed(self.corrections), *self.charges)]
        summed = charge_algebra.add(frames) if self.corrections else charge_algebra.canonical(pl.concat(frames))
        return summed.with_columns(closed=~pl.any_horizontal(pl.lit(False), *map(charge_algebra.in_period, self.open)))

    def by(self, *keys: str, amounts: tuple[str, ...] = ("cost_nano",), every: str = "1h") -> pl.DataFrame:
        time, closed = pl.col("hour").dt.truncate(every), (pl.col("state") != "open").alias("closed")
        return self.rows.group_by(time, *keys, closed).agg(pl.col(amounts).sum()).collect(engine="streaming")

    @cached_property
    def loaded(self) -> pl.DataFrame:
        whole = pl.concat([replace(part, run_id=None).frame for part in self.charges])
        loaded, run_id = charges.fully_load(charge_algebra.canonical(whole)), self.parts[0].run_id
        return loaded if run_id is None else loaded.filter(charged_to(run_id))

    @property
    def newest_book(self) -> PriceBook:
        return max(self.parts, key=lambda part: (part.period.to_ns, part.posting.number if part.posting else 0)).book


def bill(
    ledger: Ledger,
    period: Period,
    price_book: str | PriceBook | None = None,
    *,
    provenance: str | None = None,
    close_id: str | None = None,
    as_of_ns: int | None = None,
) -> Bill:
    """Return the bill of a period, or of one close as known at `as_of_ns`. `price_book` prices the open hours.

    Raises PricingError if there are no charges, if several provenances have charges and none is chosen, if a frozen
    file has changed, or if open hours cannot be priced. Also raises PriceBookError."""
    every = postings(ledger) if close_id is None else {close_id: store.of_close(ledger, close_id, as_of_ns)}
    overlapping = {name: own for name, own in every.items() if own[0].period.overlaps(period)}
    present = {own[0].provenance for own in overlapping.values()}
    if open_parts(period, (own[0].period for own in overlapping.values())):
        present |= _of_runs(ledger, period)
    provenance = one_provenance(ledger, present, provenance, period)
    posted = {name: own for name, own in overlapping.items() if own[0].provenance == provenance}
    gaps = open_parts(period, (own[0].period for own in posted.values()))
    parts = [
        Part(
            source=store.file(ledger, posting, posting.rows_file),
            period=posting.period.within(period),
            posting=posting,
            book=store.book_of(ledger, posting),
        )
        for own in posted.values()
        for posting in own
    ]
    verified, books = all(part.posting.verified for part in parts if part.posting), [part.book for part in parts]
    if gaps:
        book = pricebook.choose(ledger, price_book, period=period, provenance=provenance)
        books.append(book)
    for gap in gaps:
        try:
            priced = charges.price(ledger, book, gap, provenance=provenance)
        except NothingChargedError:
            continue
        verified &= priced.verified
        parts.append(Part(source=priced.frame, period=gap, posting=None, book=book))
    if not parts:
        raise NothingChargedError(
            f"no device time was provisioned in {period.label} ({provenance}), so nothing is charged"
        )
    return Bill(
        ledger=ledger,
        period=period,
        stamp=Stamp(
            from_ns=period.from_ns,
            to_ns=period.to_ns,
            provenance=provenance,
            book=replace(BookFacts.from_book(books[-1]), example=any(book.example for book in books)),
            verified=verified,
        ),
        parts=tuple(parts),
        open=tuple(gaps),
        closes={name: len(own) - 1 for name, own in posted.items()},
    )


def open_parts(period: Period, closed: Iterable[Period]) -> list[Period]:
    """Return the parts of a period that no closed period covers."""
    taken = ((one.from_ns, one.to_ns) for one in closed)
    return [Period(*gap) for gap in without((period.from_ns, period.to_ns), taken)]


def of_close(ledger: Ledger, close_id: str, as_of_ns: int | None = None) -> Bill:
    first, *_ = store.of_close(ledger, close_id, as_of_ns)
    return bill(ledger, first.period, provenance=first.provenance, close_id=close_id, as_of_ns=as_of_ns)


def of_run(ledger: Ledger, run_id: str, price_book: str | PriceBook | None = None) -> Bill:
    """Return the bill of a run, with the marginal cost of borrowing. The bill of a fleet includes its RL runs."""
    from rose.pricing.run.priced import priced as priced_run

    book = pricebook.choose(ledger, price_book, run_id=run_id)
    priced = charges.price(ledger, book, run_id=run_id)
    hours = [nanoseconds(hour) for hour in priced.frame["hour"].unique()]
    whole = bill(ledger, Period(min(hours), max(hours) + NS_PER_HOUR), book, provenance=priced.provenance)
    with priced_run(ledger, run_id, book) as run:
        marginal_nano = nano_usd_of(run.borrow.usd)
    parts = (replace(part, run_id=run_id) for part in whole.parts)
    return replace(whole, parts=tuple(part for part in parts if not part.frame.is_empty()), marginal_nano=marginal_nano)


def provenances(ledger: Ledger, period: Period) -> list[str]:
    closed = {own[0].provenance for own in postings(ledger).values() if own[0].period.overlaps(period)}
    return sorted(closed | _of_runs(ledger, period))


def _of_runs(ledger: Ledger, period: Period) -> set[str]:
    with ledger.connect() as connection:
        set_variables(connection, from_ns=period.from_ns, to_ns=period.to_ns)
        return {str(row["provenance"]) for row in rows(connection, "closing/provenances")}


def one_provenance(ledger: Ledger, present: set[str], chosen: str | None, period: Period) -> str:
    if chosen is not None:
        return chosen
    if len(present) > 1:
        raise PricingError(
            f"{period.label} has charges of different provenance ({', '.join(sorted(present))}); no figure may "
            "combine them: choose one with --provenance"
        )
    if not present:
        refuse_archived_since(ledger, period.from_ns)
        raise NothingChargedError(f"no run lies in {period.label}, so nothing is charged")
    return present.pop()
