"""`rose price`: price books on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rose.errors import UserError
from rose.ledger.layout import LedgerError
from rose.pricing.commands.common import BookOption, failed

price_app = typer.Typer(no_args_is_help=True, help="Check and show price books.")


@price_app.command("check")
def check(file: Annotated[Path, typer.Argument(help="A price book TOML file.")]) -> None:
    """Validate a price book; name every wrong field if it cannot be used."""
    from rose.pricing import pricebook

    try:
        book = pricebook.load(file)
    except (UserError, LedgerError) as error:
        raise failed(error) from None
    typer.echo(f"{file}: {book.name} {book.version}, {book.currency}, {len(book.device)} device prices: good")


@price_app.command("show")
def show(price_book: BookOption = "example") -> None:
    """Show a price book: every price with its dates and its source."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from rose.pricing import pricebook
    from rose.pricing.tables import WIDTH

    try:
        book = pricebook.load(price_book)
    except (UserError, LedgerError) as error:
        raise failed(error) from None
    lending, tokens = book.lending, book.tokens
    entries = [
        (p.device_class, f"${p.usd_per_hour} per device-hour, {p.commitment}, "
         + (f"{p.valid_from} on" if p.valid_to is None else f"{p.valid_from} until {p.valid_to}"), p)
        for p in book.device
    ] + [
        *((f"power of {p.device_class}", f"{p.idle_w} W idle, {p.load_w} W loaded (assumed)", p) for p in book.power),
        ("electricity", f"${book.electricity.usd_per_kwh} per kWh, PUE {book.electricity.pue}", book.electricity),
        *((f"transfer {t.route}", f"${t.usd_per_gb} per GB", t) for t in book.transfer),
        ("lending", f"fleet exists without leases: {'yes' if lending.idle_anyway else 'no'}; scheduler "
         f"${lending.scheduler_usd_per_lease_s} per lease-second; recomputed prompt "
         f"${lending.kv_recompute_usd_per_million_tokens} per million tokens; missed budget ${lending.violation_usd}",
         lending),
        ("serving tokens", f"${tokens.input_usd_per_million} in, ${tokens.output_usd_per_million} out, per million",
         tokens),
    ]  # fmt: skip
    table = Table(title=f"Price book {book.name} {book.version}, {book.currency}", box=box.SIMPLE_HEAD, width=WIDTH)
    for column in ("what", "price", "source", "of"):
        table.add_column(column, overflow="fold", no_wrap=column == "of")
    for what, price, entry in entries:
        table.add_row(what, price, entry.source, str(entry.source_date))
    Console(width=WIDTH).print(table)
