"""`rose changes`: what drove the change of cost from one period to another."""

from __future__ import annotations

from typing import Annotated

import typer

from rose.ledger.access import logged
from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.ledger.commands.common import progress_bar
from rose.pricing.commands.common import (
    BookOption,
    CsvOption,
    PeriodOption,
    ProvenanceOption,
    TzOption,
    UnverifiedOption,
    check_format,
    clear_errors,
    print_rows,
)
from rose.terminal import echo


def changes_command(
    period: PeriodOption = None,
    before: Annotated[
        str | None, typer.Option("--before", help="The period to compare with; else as long a time just before.")
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="team, run, device-class, pool, device, bucket, task or version.")
    ] = "team",
    top: Annotated[int, typer.Option("--top", min=1, help="Show so many lines; JSON and CSV have all.")] = 10,
    tz: TzOption = None,
    ledger: LedgerOption = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    *,
    allow_unverified: UnverifiedOption = False,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
) -> None:
    """What drove the change of cost between two periods: effects that sum to the difference to the nano-dollar."""
    with clear_errors():
        check_format(as_csv, as_json)
        from rose.clock import utc_us
        from rose.pricing.answers import changes
        from rose.pricing.spend.calendar import Calendar

        root, asked = ledger_root(ledger), [period or "this-month", *([before] if before else [])]
        calendar = Calendar(tz or "UTC")
        now_ns = utc_us() * 1000
        periods = [calendar.period(text, now_ns) for text in asked]
        with logged(root, "report", f"changes {' '.join(asked)}"), progress_bar("Adding up"):
            made = changes.build(
                root, *periods, by=by, price_book=price_book, provenance=provenance, allow_unverified=allow_unverified
            )
        print_rows(
            made.to_json,
            lambda: changes.csv_text(made),
            lambda: changes.terminal(made, calendar, top),
            as_csv,
            as_json,
        )
        if periods[0].to_ns > now_ns and not (as_csv or as_json):
            echo("The period is not over, so its cost may still grow.", err=True, colour=typer.colors.YELLOW)
