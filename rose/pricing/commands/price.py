"""The command `rose price`. It checks, shows or adopts a price book."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from rose.ledger.commands.common import JsonOption, LedgerOption, open_ledger
from rose.pricing.commands.common import WhoOption, clear_errors
from rose.terminal import echo, echo_data

if TYPE_CHECKING:
    from rose.pricing.price_books.entries import Entry
    from rose.pricing.price_books.pricebook import PriceBook


def price_command(
    file: Annotated[
        str | None, typer.Argument(help="A price book TOML file, or the name of one that comes with ROSE.")
    ] = None,
    ledger: LedgerOption = None,
    who: WhoOption = None,
    *,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Price the ledger by FILE from now on; the ledger keeps a copy of FILE.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a price book and show its prices with dates and sources. Without FILE, show the book of the ledger."""
    with clear_errors():
        from rose.pricing.closing.close import user
        from rose.pricing.money import PricingError
        from rose.pricing.price_books import pricebook

        if adopt and file is None:
            raise PricingError("--adopt needs a price book; name its file")
        book = pricebook.named(file) if file is not None else pricebook.choose(open_ledger(ledger))
        adoption = pricebook.adopt(open_ledger(ledger), book, by=who or user()) if adopt else None
    if as_json:
        plain = book.model_dump(mode="json", by_alias=True, exclude_none=True)
        own = {"sha256": book.sha256, "path": book.path, "chosen": book.chosen, "example": book.example}
        adopted_by = {} if adoption is None else {"adopted_by": adoption.adopted_by}
        echo_data(json.dumps({**plain, **own, **adopted_by}, indent=2))
    elif adoption is not None:
        echo(f"{book.name} {book.version} ({book.sha256[:12]}) is adopted, by {adoption.adopted_by}")
    else:
        _show(book)


def _show(book: PriceBook) -> None:
    from rose.pricing import console
    from rose.pricing.figures import BookFacts
    from rose.pricing.price_books.entries import span_of
    from rose.pricing.table import Table, columns

    names = ("what", "price", "valid", "source", "dated")
    rows = tuple(
        (" ".join((table, *entry.key)), _words(entry), span_of(*entry.days), entry.source, str(entry.source_date))
        for table, entries in book.tables.items()
        for entry in entries
    )
    title = BookFacts.from_book(book).line
    console.show([Table(title=title, columns=columns(*names, text=names, whole=("dated",)), rows=rows)])


def _words(entry: Entry) -> str:
    hidden = {*entry.key_fields, "source", "source_date", "valid_from", "valid_to"}
    plain = entry.model_dump(mode="json", exclude=hidden, exclude_none=True, by_alias=True)
    texts = (value if isinstance(value, str) else json.dumps(value).replace('"', "") for value in plain.values())
    return ", ".join(map(" ".join, zip(plain, texts, strict=True)))
