"""The commands about a period: `rose cost`, `changes`, `saved`, `forecast` and `reconcile`."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.clock import utc_us
from rose.ledger.access import logged
from rose.ledger.commands.common import JsonOption, LedgerOption, open_ledger, progress_bar
from rose.ledger.commands.output import json_text
from rose.pricing.commands import common
from rose.pricing.money import PricingError, format_usd
from rose.pricing.spend.calendar import Calendar
from rose.terminal import echo, echo_data

if TYPE_CHECKING:
    from rose.ledger.ledger import Ledger
    from rose.pricing.spend.cost import Cost

TeamOption = Annotated[str | None, typer.Option("--team", help="One team only.")]
OneRunOption = Annotated[str | None, typer.Option("--run", help="One run only.")]


def cost_command(
    period: common.PeriodOption = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            help="team, run, device-class, pool, device, hardware, bucket, task, version, lease, fate, cause, route, "
            "tag:NAME, day, week, month, quarter or year; may be repeated, six at most. By default team.",
        ),
    ] = None,
    team: TeamOption = None,
    run: OneRunOption = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only runs with this tag, as NAME=VALUE.")] = None,
    view: Annotated[
        str, typer.Option("--view", help="amortized; or fully-loaded, which charges idle time to work.")
    ] = "amortized",
    tz: common.TzOption = None,
    ledger: LedgerOption = None,
    price_book: common.BookOption = None,
    provenance: common.ProvenanceOption = None,
    close: Annotated[str | None, typer.Option("--close", help="A single close with its corrections.")] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="The close as it was at this UTC time, such as 2026-12-05T10:00Z.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a .csv file, or a .html page to send or print.")
    ] = None,
    *,
    allow_unverified: common.UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a period's cost by up to six dimensions. Closed hours cost what was booked. Open hours are priced now."""
    with common.clear_errors():
        from rose.pricing.spend import cost, spend_tables

        opened = open_ledger(ledger, allow_unverified=allow_unverified)
        if out is not None:
            from rose.pricing.export import out as writing

            writing.check(out, (".csv", ".html"))
        if close is not None and price_book is not None:
            raise PricingError("a close has its own prices: leave out --price-book")
        question = cost.question(
            opened,
            now_ns=utc_us() * 1000,
            period=period,
            by=by,
            team=team,
            run=run,
            tag=tag,
            view=view,
            tz=tz,
            provenance=provenance,
            close=close,
            as_of=as_of,
        )
        with logged(opened, "report", f"cost {question.period.label}"), progress_bar("Adding up"):
            answer = cost.ask(opened, question, price_book)
        if out is None:
            common.print_answer(as_json, answer.to_json, lambda: spend_tables.terminal(answer))
        else:
            _write(opened, answer, out)


def _write(ledger: Ledger, answer: Cost, path: Path) -> None:
    from rose.pricing.closing.store import postings
    from rose.pricing.export import out as writing
    from rose.pricing.spend import spend_tables

    close_id = answer.question.close_id
    title = f"Cost by {', '.join(answer.question.by)}" + (f", close {close_id}" if close_id else "")
    if path.suffix == ".csv":
        text = spend_tables.csv_text(answer)
    else:
        posted = postings(ledger)[close_id] if close_id else ()
        text = writing.page(title, spend_tables.page(answer, posted), answer.stamp.warnings)

    def make(temporary: Path) -> tuple[int, dict[str, int]]:
        temporary.write_text(text, encoding="utf-8")
        return len(answer.lines), {"total": answer.total.cost_nano}

    written = writing.write(path, make)
    echo(f"{path}: {format_usd(answer.total.cost_nano)}, SHA-256 {written.sha256}")


def changes_command(
    period: common.PeriodOption = None,
    before: Annotated[
        str | None,
        typer.Option("--before", help="The period to compare with; by default an equally long period just before."),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="team, run, device-class, pool, device, bucket, task or version.")
    ] = "team",
    top: Annotated[int, typer.Option("--top", min=1, help="Number of lines to show; JSON has all.")] = 10,
    tz: common.TzOption = None,
    ledger: LedgerOption = None,
    price_book: common.BookOption = None,
    provenance: common.ProvenanceOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Explain why cost changed between two periods, by effects that sum to the change."""
    with common.clear_errors():
        from rose.pricing.answers import changes

        opened, now = open_ledger(ledger), common.period_of(period, tz)
        was = None if before is None else common.period_of(before, tz)
        with logged(opened, "report", f"changes {now.label}"), progress_bar("Adding up"):
            answer = changes.build(opened, now, was, by=by, price_book=price_book, provenance=provenance)
        common.print_answer(as_json, answer.to_json, lambda: changes.terminal(answer, Calendar(tz or "UTC"), top))
        if now.to_ns > utc_us() * 1000 and not as_json:
            echo("The period is not over, so its cost may still grow.", err=True, colour=typer.colors.YELLOW)


def saved_command(
    period: common.PeriodOption = None,
    team: TeamOption = None,
    run: OneRunOption = None,
    tz: common.TzOption = None,
    ledger: LedgerOption = None,
    price_book: common.BookOption = None,
    provenance: common.ProvenanceOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show what borrowing saved against buying devices, and what capacity it avoided, for the fleet, teams and runs."""
    with common.clear_errors():
        from rose.pricing.spend import spend_tables
        from rose.pricing.spend.saved import saved

        opened, whole = open_ledger(ledger), common.period_of(period, tz)
        with logged(opened, "report", f"saved {whole.label}"), progress_bar("Comparing runs") as progress:
            answer = saved(opened, whole, price_book, team=team, run_id=run, provenance=provenance, progress=progress)
        common.print_answer(as_json, answer.to_json, lambda: spend_tables.saved_terminal(answer, Calendar(tz or "UTC")))


def forecast_command(
    ledger: LedgerOption = None,
    month: common.MonthOption = None,
    team: Annotated[str | None, typer.Option("--team", help="A single team; an unknown name is an error.")] = None,
    price_book: common.BookOption = None,
    provenance: common.ProvenanceOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Forecast the cost of a month for the fleet and every team."""
    with common.clear_errors():
        from rose.pricing.watch import budget

        opened, whole = open_ledger(ledger), common.month_of(month)
        with logged(opened, "report", f"forecast {whole.label}"), progress_bar("Adding up"):
            rows = budget.expected(opened, whole, price_book, team, provenance=provenance)
        common.print_answer(as_json, lambda: [row.to_json() for row in rows], lambda: budget.forecast_tables(rows))


def reconcile_command(
    invoice: Annotated[Path, typer.Argument(help="The vendor's FOCUS 1.0 to 1.2 file: CSV, CSV in gzip, or Parquet.")],
    period: Annotated[
        str, typer.Option("--period", "-p", help="Whole UTC days: 2026-10, last-month, 2026-10-03, FROM..TO.")
    ],
    tolerance: Annotated[
        str,
        typer.Option("--tolerance", help="Largest allowed difference of a device, in percent of the ledger's amount."),
    ] = "0.5%",
    ledger: LedgerOption = None,
    price_book: common.BookOption = None,
    provenance: common.ProvenanceOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Compare a vendor's bill with the ledger, by device and day. The exit code is 1 if they differ too much."""
    with common.clear_errors():
        from rose.pricing import console, reconcile

        opened, share, whole = open_ledger(ledger), _share(tolerance), common.period_of(period)
        with logged(opened, "report", f"reconcile {whole.label}"), progress_bar("Reconciling"):
            answer = reconcile.reconcile(opened, invoice, whole, price_book, tolerance=share, provenance=provenance)
        if as_json:
            echo_data(json_text(answer)[0])
        else:
            console.show(reconcile.tables(answer))
    if not answer["within"]:
        raise typer.Exit(1)


def _share(text: str) -> Fraction:
    if not re.fullmatch(r"\d{1,3}(\.\d{1,9})?%", text) or (share := Fraction(text[:-1]) / 100) > 1:
        raise PricingError(f"--tolerance {text!r} is not a percentage from 0% to 100%; write it as 0.5%")
    return share
