"""Closes and restates periods. Closing freezes charges. Restating adds signed rows: closed + corrections = restated."""

import dataclasses
import getpass
import hashlib
import os
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

import polars as pl

from rose.clock import utc, utc_us
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.charges import Charges, Stay
from rose.pricing.charges.pricing import AMOUNTS, exact, total
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.bill import of_close
from rose.pricing.closing.store import BookStamp, Posting, postings, watermark
from rose.pricing.money import NothingChargedError, PricingError
from rose.pricing.period import Period, naive
from rose.pricing.price_books.pricebook import PriceBook, refuse_example

BOOK_FILE = "price_book.toml"
_OPEN_RUNS = """SELECT run_id, 1000 * epoch_us(started_at) AS started_ns FROM run
    WHERE status = 'running' AND provenance = ? AND started_ns < ? ORDER BY run_id"""


def close(
    ledger: Ledger,
    period: Period,
    book: PriceBook,
    *,
    provenance: str | None = None,
    by: str | None = None,
    with_open_runs: bool = False,
    now_us: int | None = None,
) -> Posting:
    """Price and freeze a period, completely or not at all.

    Raises PricingError if the prices are examples, if the period is not over, has no charge or overlaps a close, or if
    a run is open and `with_open_runs` is not set. Also raises PriceBookError or LedgerError."""
    now_us = utc_us() if now_us is None else now_us
    refuse_example(book, f"closing {period.label}")
    if period.to_ns > now_us * 1000:
        raise PricingError(
            f"the period {period.label} ends at {utc(period.to_ns)} and is not over at {utc(now_us * 1000)}; "
            "close it afterwards, or close a period that is over"
        )
    with ledger.lock("closing"):
        if provenance is not None:
            _refuse_closed(ledger, period, provenance)
        mark = watermark(ledger)  # Before anything is read: every event up to the mark is then priced.
        priced = charges.price(ledger, book, period, provenance=provenance)
        if priced.frame.is_empty():
            raise NothingChargedError(f"the period {period.label} has no charge to close")
        _refuse_closed(ledger, period, priced.provenance)
        with ledger.connect() as connection:
            runs = connection.execute(_OPEN_RUNS, [priced.provenance, period.to_ns]).fetchall()
        charged = set(priced.frame["run_id"].unique())
        open_runs = [run_id for run_id, started_ns in runs if run_id in charged or started_ns >= period.from_ns]
        if open_runs and not with_open_runs:
            raise PricingError(
                f"in the period {period.label} a run has not ended: {', '.join(open_runs)}. Close when it has ended, "
                "or give --with-open-runs; later events of the period then need a correction"
            )
        return post(
            ledger,
            close_id=f"{period.label}-{priced.provenance}-1",
            number=0,
            priced=priced,
            frame=priced.frame,
            more_files={BOOK_FILE: book.text.encode(), store.STAYS_FILE: store.parquet(_stays(priced))},
            book_file=BOOK_FILE,
            watermark=mark,
            posted_us=now_us,
            by=by,
            open_runs=open_runs,
        )


def _refuse_closed(ledger: Ledger, period: Period, provenance: str) -> None:
    for close_id, (first, *_) in postings(ledger).items():
        if first.provenance == provenance and first.period.overlaps(period):
            raise PricingError(
                f"the period {period.label} overlaps {close_id}, which is closed for {provenance} from "
                f"{utc(first.from_ns)} to {utc(first.to_ns)}; `rose books restate {close_id}` corrects a closed period"
            )


def post(
    ledger: Ledger,
    *,
    close_id: str,
    number: int,
    priced: Charges,
    frame: pl.DataFrame,
    more_files: Mapping[str, bytes],
    book_file: str,
    watermark: dict[str, tuple[int, str]],
    posted_us: int,
    by: str | None,
    open_runs: Iterable[str] = (),
    reason: str | None = None,
) -> Posting:
    """Freeze `frame`: the charges of a close, or the rows of a correction. The caller must hold the lock."""
    if abs(cost_nano := total(frame)) >= 2**63:
        raise PricingError(
            f"{close_id} comes to {cost_nano:,} nano-dollars, but the books take only amounts below {2**63:,}: check "
            "the unit of the prices (`rose price`), or close a shorter period"
        )
    rows_file, book = f"corrections-{number:04d}.parquet" if number else store.CHARGES_FILE, priced.book
    contents = {rows_file: store.parquet(frame), **more_files}
    posting = Posting(
        close_id=close_id,
        number=number,
        provenance=priced.provenance,
        from_ns=priced.from_ns,
        to_ns=priced.to_ns,
        posted_us=posted_us,
        posted_by=by or user(),
        rose_version=metadata.version("rose-serving"),
        verified=priced.verified,
        reason=reason,
        open_runs=tuple(open_runs),
        book=BookStamp(
            name=book.name,
            version=book.version,
            currency=book.currency,
            sha256=book.sha256,
            source=book.path,
            file=book_file,
        ),
        rows=frame.height,
        cost_nano=cost_nano,
        rows_file=rows_file,
        files={name: hashlib.sha256(stored).hexdigest() for name, stored in contents.items()},
        totals=tuple(totals(frame)),
        watermark=watermark,
    )
    store.post(ledger, posting, contents)
    return posting


def totals(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.group_by("kind", "bucket").agg(exact(name) for name in AMOUNTS).sort("kind", "bucket").to_dicts()


def _stays(priced: Charges) -> pl.DataFrame:
    schema = {field.name: pl.Int64 if field.type is int else pl.String for field in dataclasses.fields(Stay)}
    return pl.DataFrame([dataclasses.astuple(stay) for stay in priced.stays], schema=schema, orient="row")


def user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


def restate(
    ledger: Ledger,
    close_id: str,
    reason: str,
    book: PriceBook | None = None,
    *,
    by: str | None = None,
    now_us: int | None = None,
) -> Posting | None:
    """Price a closed period again, and post the difference as a correction. Return the correction, or None if no charge
    differs. By default, `book` is the price book of the close's last posting.

    Raises PriceBookError, or PricingError for an unknown close, an empty reason or a period that cannot be priced."""
    if not reason.strip():
        raise PricingError("a correction needs a reason that a reader of the books understands; give --reason")
    with ledger.lock("closing"):
        closed = of_close(ledger, close_id)
        store.stays(ledger, closed.posted[0])  # Refuse a close whose other frozen file was changed, too.
        last = closed.posted[-1]
        book = book or closed.parts[-1].book
        refuse_example(book, f"correcting {close_id}")
        mark = watermark(ledger)
        priced = charges.price(ledger, book, last.period, provenance=last.provenance)
        number = last.number + 1
        # Never before the last posting, whatever the clock says.
        posted_us = max(utc_us() if now_us is None else now_us, last.posted_us + 1)
        changed = charge_algebra.difference(priced.frame, closed.frame.drop("closed"))
        if changed.is_empty():
            return None
        new_book = book.sha256 != last.book.sha256
        book_file = f"price_book-{number:04d}.toml" if new_book else last.book.file
        frame = changed.with_columns(
            pl.lit(number, pl.Int64).alias("correction"),
            pl.lit(naive(posted_us * 1000), pl.Datetime("us")).alias("posted_at"),
            pl.lit(reason, pl.String).alias("reason"),
        )
        return post(
            ledger,
            close_id=close_id,
            number=number,
            priced=priced,
            frame=frame,
            more_files={book_file: book.text.encode()} if new_book else {},
            book_file=book_file,
            watermark=mark,
            posted_us=posted_us,
            by=by,
            reason=reason,
        )
