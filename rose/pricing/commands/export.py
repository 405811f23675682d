"""The command `rose export`, which writes FOCUS rows or a workbook."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rose.ledger.access import logged
from rose.ledger.commands.common import JsonOption, LedgerOption, open_ledger, progress_bar
from rose.pricing.commands.common import BookOption, PeriodOption, ProvenanceOption, clear_errors, period_of
from rose.pricing.money import PricingError, format_usd
from rose.terminal import echo, echo_data


def export_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file: .parquet or .csv for FOCUS 1.2 rows, .xlsx for a workbook.")
    ],
    ledger: LedgerOption = None,
    close: Annotated[str | None, typer.Option("--close", help="A closed period, with its corrections.")] = None,
    period: PeriodOption = None,
    run: Annotated[str | None, typer.Option("--run", help="A single run, with its marginal cost of borrowing.")] = None,
    provenance: ProvenanceOption = None,
    price_book: BookOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Export a close, a period or a run, as checked FOCUS 1.2 rows or as an Excel workbook."""
    with clear_errors():
        from rose.ledger import verified
        from rose.pricing.closing.bill import bill, of_close, of_run
        from rose.pricing.export import focus, workbook
        from rose.pricing.export import out as writing

        opened = open_ledger(ledger)
        writing.check(out, (*focus.SUFFIXES, workbook.SUFFIX))
        options = {"--close": close, "--period": period, "--run": run}
        scopes = [option for option, value in options.items() if value is not None]
        if len(scopes) > 1:
            raise PricingError(f"give one of {', '.join(scopes)}")
        if close is not None and (provenance, price_book) != (None, None):
            raise PricingError("a close has its own prices: leave out --provenance and --price-book")
        with logged(opened, "export", str(out)), progress_bar("Exporting") as progress:
            if close is not None:
                billed = of_close(opened, close)
            elif run is not None:
                billed = of_run(opened, run, price_book)
            else:
                billed = bill(opened, period_of(period), price_book, provenance=provenance)
            write = workbook.write if out.suffix == workbook.SUFFIX else focus.write
            done = write(billed, out, progress=progress)
        echo(f"Ledger {verified.text(opened.folder)}", err=True)
        if as_json:
            echo_data(json.dumps(done.to_json(), indent=2))
            return
        totals = ", ".join(f"{name} {format_usd(nano)}" for name, nano in done.totals.items() if "/" not in name)
        echo(f"{done.path}: {done.rows:,} rows; {totals}", f"SHA-256 {done.sha256}")
