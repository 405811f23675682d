"""`rose price`: price books on the command line."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import WhoOption, clear_errors
from rose.terminal import echo, echo_data

if TYPE_CHECKING:
    from rose.pricing.price_books.entries import Entry, Lending

price_app = typer.Typer(no_args_is_help=True, help="Check and show price books, and adopt one.")

_BOOK_HELP = "A price book TOML file, or the name of one that comes with ROSE."


@price_app.command("show")
def show(
    file: Annotated[str | None, typer.Argument(help=_BOOK_HELP)] = None,
    ledger: LedgerOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Check a price book, and show every price with its dates and its source; without one, the ledger's book."""
    from rose.pricing.figures import BookFacts
    from rose.pricing.price_books import choice
    from rose.pricing.price_books.entries import span_of
    from rose.pricing.price_books.rules import FILE_TABLES

    with clear_errors():
        book = choice.choose(ledger_root(ledger), file)
    if as_json:
        plain = book.model_dump(mode="json", by_alias=True, exclude_none=True)
        own = {"sha256": book.sha256, "path": book.path, "chosen": book.chosen, "example": book.example}
        echo_data(json.dumps({**plain, **own}, indent=2))
        return
    rows = [
        (
            " ".join((table, *entry.key)),
            _words(entry) + _range(entry),
            span_of(*entry.days),
            entry.source,
            str(entry.source_date),
        )
        for table in FILE_TABLES
        for entry in book.entries(table)
    ]
    from rose.pricing import console
    from rose.pricing.table import Table, columns

    names = ("what", "price", "holds", "source", "of")
    title = BookFacts.from_book(book).line
    console.show([Table(title=title, columns=columns(*names, text=names, whole=("of",)), rows=tuple(rows))])


@price_app.command("adopt")
def adopt(
    file: Annotated[str, typer.Argument(help=_BOOK_HELP)],
    ledger: LedgerOption = None,
    who: WhoOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Have a ledger priced by a book from now on; the ledger keeps the book's text."""
    with clear_errors():
        from rose.pricing.closing import store
        from rose.pricing.closing.close import user
        from rose.pricing.price_books import pricebook

        book = pricebook.load(file)
        adoption = store.adopt(ledger_root(ledger), book, by=who or user())
    if as_json:
        record = dataclasses.asdict(adoption)
        del record["text"]
        echo_data(json.dumps(record, indent=2))
        return
    echo(f"{book.name} {book.version} ({book.sha256[:12]}) is adopted, by {adoption.adopted_by}")


def _range(entry: Entry) -> str:
    if entry.low_share is None or entry.high_share is None:
        return ""
    return f"; 95% range {entry.low_share:%} to {entry.high_share:%} of it"


def _probability(entry: Lending) -> str:
    if entry.idle_anyway is None:
        return "not stated"
    if entry.idle_anyway in (0, 1):
        return "yes" if entry.idle_anyway else "no"
    ends = (
        f" ({entry.idle_anyway_low:.0%} to {entry.idle_anyway_high:.0%})" if entry.idle_anyway_low is not None else ""
    )
    return f"{entry.idle_anyway:.0%} likely{ends}"


def _optional(entry: Lending) -> str:
    """What a book may leave out, in words."""
    parts = [
        f"; {words} ${usd:f} {per}"
        for words, usd, per in (
            ("serving slowed down", entry.interference_usd_per_device_hour, "per device-hour"),
            ("memory held while not lent", entry.held_memory_usd_per_gib_hour, "per GiB-hour"),
            ("publishing", entry.publish_usd_per_sync, "per sync"),
        )
        if usd is not None
    ]
    if entry.latency_usd is not None:
        points = ", ".join(f"${usd:f} at {share:%}" for share, usd in entry.latency_usd)
        parts.insert(0, f"; a kept one {points} of its budget")
    return "".join(parts)


def _words(entry: Entry) -> str:
    """The price of an entry in words."""
    from rose.pricing.price_books import entries, rules

    match entry:
        case entries.DevicePrice():
            energy = ", energy included" if entry.energy_included else ""
            return f"${entry.usd_per_hour:f} per device-hour, {entry.commitment}{energy}"
        case entries.Offer():
            often = entry.interruptions_per_hour
            taken_back = "" if often is None else f", {often:f} interruptions an hour"
            return f"${entry.usd_per_hour:f} per device-hour{taken_back}"
        case entries.PowerFigure():
            between = "".join(f", {watts:f} W at load {load:f}" for load, watts in entry.points[1:-1])
            return f"{entry.idle_w:f} W idle{between}, {entry.load_w:f} W loaded (assumed)"
        case entries.Electricity():
            return f"${entry.usd_per_kwh:f} per kWh, PUE {entry.pue:f}"
        case entries.TransferPrice():
            return f"${entry.usd_per_gb:f} per GB"
        case entries.Lending():
            return (
                f"fleet exists without leases: {_probability(entry)}; "
                f"scheduler ${entry.scheduler_usd_per_lease_s:f} per lease-second; "
                f"recomputed prompt ${entry.kv_recompute_usd_per_million_tokens:f} per million tokens; "
                f"missed budget {f'${entry.violation_usd:f}' if entry.violation_usd else 'not set'}{_optional(entry)}"
            )
        case entries.TokenPrices():
            return f"${entry.input_usd_per_million:f} in, ${entry.output_usd_per_million:f} out, per million"
        case entries.VerifierPrice():
            return f"${entry.usd_per_verdict:f} per verdict"
        case rules.VendorResource():
            return f"is {' '.join(entry.target)}"
        case rules.DeviceTag():
            return ", ".join(f"{name} {value}" for name, value in entry.tags.items())
    raise AssertionError(f"no words for {type(entry).__name__}")
