"""Restating a closed period with signed rows: closed rows + corrections = restated rows, exactly."""

import polars as pl

from rose.clock import utc_us
from rose.ledger.ledger import Ledger
from rose.pricing import book_events, charges
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.bill import of_close
from rose.pricing.closing.close import make_posting, settle
from rose.pricing.closing.records import Posting, watermark
from rose.pricing.money import PricingError
from rose.pricing.period import naive
from rose.pricing.price_books.pricebook import PriceBook, refuse_example


def restate(
    ledger: Ledger,
    close_id: str,
    reason: str,
    book: PriceBook | None = None,
    *,
    by: str | None = None,
    now_us: int | None = None,
) -> Posting | None:
    """Correct a close, or return None if no charge differs. By default, use the last posting's price book.

    Raises PricingError for an unknown close, an empty reason, or a period that cannot be priced. Also raises
    PriceBookError."""
    if not reason.strip():
        raise PricingError("a correction needs a reason that a reader of the books understands; give --reason")
    with book_events.lock(ledger):
        settle(ledger)
        closed = of_close(ledger, close_id)
        store.stays(ledger, closed.posted[0])  # Refuse a close whose other frozen file was changed, too.
        last = closed.posted[-1]
        book = book or closed.parts[-1].book
        refuse_example(book, f"correcting {close_id}")
        mark = watermark(ledger)
        priced = charges.price(ledger, book, from_ns=last.from_ns, to_ns=last.to_ns, provenance=last.provenance)
        number = last.number + 1
        # Never before the last posting, whatever the clock says.
        posted_us = max(utc_us() if now_us is None else now_us, last.posted_us + 1)
        rows = charge_algebra.difference(priced.frame, closed.frame.drop("closed"))
        if rows.is_empty():
            return None
        new_book = book.sha256 != last.book.sha256
        book_file = f"price_book-{number:04d}.toml" if new_book else last.book.file
        frame = rows.with_columns(
            pl.lit(number, pl.Int64).alias("correction"),
            pl.lit(naive(posted_us * 1000), pl.Datetime("us")).alias("posted_at"),
            pl.lit(reason, pl.String).alias("reason"),
        )
        posting, contents = make_posting(
            close_id=close_id,
            number=number,
            priced=priced,
            frame=frame,
            rows_file=f"corrections-{number:04d}.parquet",
            more_files={book_file: book.text.encode()} if new_book else {},
            book_file=book_file,
            watermark=mark,
            posted_us=posted_us,
            by=by,
            reason=reason,
        )
        store.post(ledger, posting, contents)
    return posting
