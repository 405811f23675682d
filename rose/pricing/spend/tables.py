"""The answer to what a period cost, as a table for a terminal and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from decimal import Decimal

from rich import box
from rich.console import RenderableType
from rich.table import Table

from rose.clock import utc
from rose.pricing.figures import AMORTIZED, EXAMPLE_PRICES, MARGINAL
from rose.pricing.money import format_ns, format_usd
from rose.pricing.run.tables import WIDTH
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.cost import Cost, Line
from rose.pricing.spend.saved import NO_INTERVAL, RunSaved, Saved, cash_text, summed
from rose.pricing.watch.budget import Expected


def terminal(cost: Cost) -> Iterator[RenderableType]:
    """What is closed and what is not, then the lines and their sum."""
    asked, total = cost.question, cost.total
    yield f"{asked.calendar.text(asked.period)}  [{AMORTIZED}; {cost.stamp}]"
    yield rests_on(cost)
    if asked.only:
        named = ", ".join(f"{name} {value}" for name, value in asked.only.items())
        yield f"{named} only: {format_usd(total.cost_nano)} of the period's bill of {format_usd(cost.bill_nano)}"
    mixed = bool(cost.open) and bool(cost.closes)
    corrected = any(line.corrections_nano for line in cost.lines)
    table = Table(box=box.SIMPLE_HEAD, width=WIDTH, show_footer=False)
    for name in asked.by:
        table.add_column(name, overflow="fold")
    amounts = ["cost", "share", *(["corrections in it"] if corrected else []), *(["of it open"] if mixed else [])]
    for name in (*amounts, "device time", "tokens"):
        table.add_column(name, justify="right")

    def cells(line: Line) -> list[str]:
        share = f"{line.cost_nano / total.cost_nano:.1%}" if total.cost_nano else "-"
        also = [format_usd(line.corrections_nano)] if corrected else []
        also += [format_usd(line.open_nano)] if mixed else []
        return [format_usd(line.cost_nano), share, *also, format_ns(line.ns), f"{line.tokens:,}"]

    before = None
    for line in cost.lines if asked.by else ():
        if len(asked.by) > 1 and before not in (None, line.values[0]):
            table.add_section()
        shown = line.values if before != line.values[0] else ("", *line.values[1:])
        before = line.values[0]
        table.add_row(*shown, *cells(line))
    table.add_section()
    table.add_row(*(["total", *[""] * (len(asked.by) - 1)] if asked.by else []), *cells(total), style="bold")
    yield table


def rests_on(cost: Cost) -> str:
    """Which part comes from the books, and which was priced now."""
    closes = ", ".join(
        close_id + (f" with {count} correction{'s' if count > 1 else ''}" if count else "")
        for close_id, count in cost.closes.items()
    )
    gaps = ", ".join(f"{utc(gap.from_ns)[:13]} to {utc(gap.to_ns)[:13]} UTC" for gap in cost.open)
    return "; ".join(
        text for text in (f"closed: {closes}" if closes else "", f"open, priced now: {gaps}" if gaps else "") if text
    )


def csv_text(cost: Cost) -> str:
    """A row for each line; amounts in whole units of the currency, to the nano. No row for the total."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    stamp = cost.stamp
    rows.writerow([
        *cost.question.by, "cost", "closed", "corrections", "open", "currency", "device_hours", "tokens", "view",
        "period_from", "period_to", "provenance", "verified", "price_book", "example_prices",
    ])  # fmt: skip
    for line in cost.lines:
        amounts = (line.cost_nano, line.closed_nano, line.corrections_nano, line.open_nano)
        rows.writerow([
            *map(_cell, line.values), *(f"{Decimal(nano).scaleb(-9):f}" for nano in amounts), stamp.currency,
            f"{Decimal(line.ns) / Decimal(3_600_000_000_000):.9f}", line.tokens, AMORTIZED, utc(stamp.from_ns),
            utc(stamp.to_ns), stamp.provenance, str(stamp.verified).lower(), stamp.book.text,
            str(stamp.book.example).lower(),
        ])  # fmt: skip
    return written.getvalue()


def forecast_csv(rows: Sequence[Expected]) -> str:
    """A row for the fleet, whose team is empty, and for each team; no forecast is an empty cell with the reason."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(["team", "month", "spent", "forecast", "low", "high", "currency", "basis", "example_prices"])
    for row in rows:
        figure = row.forecast
        amounts = (row.spent.value, figure.value, figure.low, figure.high)
        texts = ("" if nano is None else f"{Decimal(int(nano)).scaleb(-9):f}" for nano in amounts)
        basis = figure.why or figure.basis
        lines.writerow(
            [
                _cell(row.team or ""),
                row.month,
                *texts,
                figure.stamp.currency,
                basis,
                str(figure.stamp.book.example).lower(),
            ]
        )
    return written.getvalue()


def saved_terminal(saved: Saved, calendar: Calendar) -> Iterator[RenderableType]:
    """The fleet, then each team, then each run."""
    book = saved.book
    marks = [*([book.currency] if book else []), saved.provenance, *([] if saved.verified else ["UNVERIFIED LEDGER"])]
    marks += [EXAMPLE_PRICES] if book and book.example else []
    yield f"{calendar.text(saved.period)}  [{', '.join(marks)}]"
    table = Table(box=box.SIMPLE_HEAD, width=WIDTH)
    for name in ("team", "run"):
        table.add_column(name, overflow="fold")
    for name in (f"cash saved ({MARGINAL})", f"capacity avoided ({AMORTIZED}, hypothetical)", "runs"):
        table.add_column(name, justify="right")
    for team in (None, *saved.teams):
        sums = summed(saved.of_team(team))
        unknown = f", {sums['runs_unknown']} not known" if sums["runs_unknown"] else ""
        capacity = sums["capacity_avoided_nano"]
        table.add_row(
            team or "the fleet", "", cash_text(sums["cash_saved_nano"]), _usd(capacity), f"{sums['runs']}{unknown}",
            style=None if team else "bold",
        )  # fmt: skip
        for run in saved.of_team(team) if team else ():
            table.add_row("", run.run_id, cash_text(run.cash_nano), _usd(run.capacity_nano), _status(run))
        table.add_section()
    yield table
    yield (
        "Two figures that are never added: cash saved is the bill without borrowing less the bill, below zero where "
        "borrowing cost more; capacity avoided was on no bill. Two amounts of cash: if the fleet would not, and if it "
        f"would, have been there anyway. A run counts in the period in which it ended. No interval: {NO_INTERVAL}."
    )
    for run in saved.runs:
        if run.why is not None:
            yield f"{run.run_id}: {run.why}"


def saved_csv(saved: Saved) -> str:
    """A row for each run; what is not known is an empty cell with the reason."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow([
        "team", "run", "status", "cash_saved_if_there_anyway", "cash_saved_if_not", "capacity_avoided", "currency",
        "example_prices", "why",
    ])  # fmt: skip
    for run in saved.runs:
        amounts = (*(run.cash_nano or (None, None)), run.capacity_nano)
        texts = ("" if nano is None else f"{Decimal(nano).scaleb(-9):f}" for nano in amounts)
        prices = ("", "") if run.book is None else (run.book.currency, str(run.book.example).lower())
        lines.writerow([_cell(run.team), _cell(run.run_id), run.status, *texts, *prices, run.why or ""])
    return written.getvalue()


def _usd(nano: int | None) -> str:
    return "not known" if nano is None else format_usd(nano)


def _status(run: RunSaved) -> str:
    return "goes on" if run.status == "running" else run.status


def _cell(text: str) -> str:
    """Text that a spreadsheet takes for no formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
