"""The price book that a ledger has adopted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rose.clock import utc_us
from rose.ledger.ledger import Ledger
from rose.pricing.price_books.pricebook import PriceBook, refuse_example

ADOPTED = "adopted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """A price book that prices the ledger from `adopted_us`, in UTC microseconds since the Unix epoch."""

    name: str
    version: str
    sha256: str
    text: str
    adopted_us: int
    adopted_by: str


def adopted(ledger: Ledger) -> Adoption | None:
    """Return the price book that was adopted last, or None. Raises LedgerError."""
    recorded = ledger.book_details(ADOPTED)
    if not recorded:
        return None
    return Adoption(**{field.name: recorded[-1][field.name] for field in dataclasses.fields(Adoption)})


def adopt(ledger: Ledger, book: PriceBook, *, by: str) -> Adoption:
    """Price the ledger with this book from now on. Raises PricingError if it has example prices. Raises LedgerError."""
    refuse_example(book, "adoption")
    with ledger.lock("closing"):
        if (last := adopted(ledger)) is not None and last.text == book.text:
            return last
        adoption = Adoption(
            name=book.name, version=book.version, sha256=book.sha256, text=book.text, adopted_us=utc_us(), adopted_by=by
        )
        ledger.record_in_books(ADOPTED, dataclasses.asdict(adoption), adoption.adopted_us)
    return adoption
