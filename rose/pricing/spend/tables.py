"""Cost and savings of a period, as a table and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from rose.clock import utc
from rose.ledger.commands.output import csv_cells
from rose.pricing.figures import AMORTIZED, EXAMPLE_PRICES, MARGINAL
from rose.pricing.money import format_money
from rose.pricing.run.heard import SILENT
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.cost import Cost, Line
from rose.pricing.table import Column, Element, Paragraph, Row, Table, columns

if TYPE_CHECKING:
    from rose.pricing.closing.records import Posting
    from rose.pricing.spend.saved import Saved
_STATUS = {"running": "goes on", SILENT: "not heard of any more"}


def terminal(cost: Cost) -> Iterator[Element]:
    question, currency = cost.question, cost.stamp.currency
    yield f"{question.calendar.text(question.period)}  [{cost.view}; {cost.stamp}]"
    yield rests_on(cost)
    if question.only:
        named = ", ".join(f"{name} {value}" for name, value in question.only.items())
        part, bill = (format_money(nano, currency) for nano in (cost.total.cost_nano, cost.bill_nano))
        yield f"{named} only: {part} of the period's bill of {bill}"
    yield lines(cost)


def lines(cost: Cost) -> Table:
    by, whole, currency = cost.question.by, cost.total.cost_nano, cost.stamp.currency
    corrected, mixed = any(line.corrections_nano for line in cost.lines), bool(cost.open) and bool(cost.closes)
    counted = cost.view == AMORTIZED

    def row(values: Sequence[str], line: Line) -> Row:
        share = f"{line.cost_nano / whole:.1%}" if whole else "-"
        parts = (*([line.corrections_nano] if corrected else []), *([line.open_nano] if mixed else []))
        return (*values, line.cost_nano, share, *parts, *([line.ns, line.tokens] if counted else []))

    amounts = [*(["of it corrections"] if corrected else []), *(["of it open"] if mixed else [])]
    return Table(
        title="",
        columns=(
            *map(Column, by),
            Column("cost", "money", currency),
            Column("share", "figure"),
            *(Column(name, "money", currency) for name in amounts),
            *([Column("device time", "hours"), Column("tokens", "count")] if counted else []),
        ),
        rows=tuple(row(line.values, line) for line in cost.lines) if by else (),
        footer=(row(("total", *[""] * (len(by) - 1)) if by else (), cost.total),),
        grouped=len(by) > 1,
    )


def page(cost: Cost, postings: Sequence[Posting] = ()) -> Iterator[Table | str]:
    for part in terminal(cost):
        assert not isinstance(part, Paragraph)
        yield part
    by = cost.question.by or ("",)
    yield Table(
        title="To the nano-dollar",
        columns=(*map(Column, by), *(Column(name, "count") for name in ("closed", "corrections", "open", "cost"))),
        rows=tuple((*(line.values or ("total",)), *_exact(line)) for line in cost.lines),
        footer=((*("total", *[""] * (len(by) - 1)), *_exact(cost.total)),),
        grouped=len(by) > 1,
    )
    book = cost.stamp.book
    yield Table(
        title="What it rests on",
        columns=(Column(""), Column("")),
        header=False,
        rows=(
            ("price book", book.line),
            ("price book's SHA-256", book.sha256),
            *((posting.name, f"posted {utc(posting.posted_ns)} by {posting.posted_by}") for posting in postings),
            *((f"SHA-256 of {posting.name}", posting.sha256) for posting in postings),
        ),
    )


def _exact(line: Line) -> tuple[int, ...]:
    return line.closed_nano, line.corrections_nano, line.open_nano, line.cost_nano


def rests_on(cost: Cost) -> str:
    closes = ", ".join(
        close_id + (f" with {count} correction{'s' if count > 1 else ''}" if count else "")
        for close_id, count in cost.closes.items()
    )
    gaps = ", ".join(f"{utc(gap.from_ns)[:13]} to {utc(gap.to_ns)[:13]} UTC" for gap in cost.open)
    return "; ".join(
        text for text in (f"closed: {closes}" if closes else "", f"open, priced now: {gaps}" if gaps else "") if text
    )


def csv_text(cost: Cost) -> str:
    """Return a row for each line, without the total; amounts in whole units, to the nano."""
    written, stamp = io.StringIO(), cost.stamp
    rows = csv.writer(written, lineterminator="\n")
    terms = {
        "view": cost.view,
        "period_from": utc(stamp.from_ns),
        "period_to": utc(stamp.to_ns),
        "provenance": stamp.provenance,
        "verified": str(stamp.verified).lower(),
        "price_book": stamp.book.text,
        "example_prices": str(stamp.book.example).lower(),
    }
    names = ("cost", "closed", "corrections", "open", "currency", "device_hours", "tokens")
    rows.writerow([*cost.question.by, *names, *terms])
    for line in cost.lines:
        amounts = (line.cost_nano, line.closed_nano, line.corrections_nano, line.open_nano)
        usd = (f"{Decimal(nano).scaleb(-9):f}" for nano in amounts)
        hours = f"{Decimal(line.ns) / Decimal(3_600_000_000_000):.9f}"
        rows.writerow([*csv_cells(line.values), *usd, stamp.currency, hours, line.tokens, *terms.values()])
    return written.getvalue()


def saved_terminal(saved: Saved, calendar: Calendar) -> Iterator[Element]:
    # Loads a third of the package, which cost does not need.
    from rose.pricing.spend.saved import NO_INTERVAL, cash_text, summed

    book = saved.book
    marks = [*([book.currency] if book else []), saved.provenance, *([] if saved.verified else ["UNVERIFIED LEDGER"])]
    marks += [EXAMPLE_PRICES] if book and book.example else []
    yield f"{calendar.text(saved.period)}  [{', '.join(marks)}]"
    currency = book.currency if book else "USD"

    def amounts_of(cash: Sequence[int] | None, capacity: int | None) -> tuple[str, str]:
        return cash_text(cash, currency), "not known" if capacity is None else format_money(capacity, currency)

    rows: list[Row] = []
    for team in (None, *saved.teams):
        sums = summed(saved.of_team(team))
        cash = sums["cash_saved_nano"]
        unknown = f", {sums['runs_unknown']} not known" if sums["runs_unknown"] else ""
        name, figures = team or "the fleet", amounts_of(cash and tuple(cash.values()), sums["capacity_avoided_nano"])
        rows.append((name, "", *figures, f"{sums['runs']}{unknown}"))
        for run in saved.of_team(team) if team else ():
            rows.append(
                (name, run.run_id, *amounts_of(run.cash_nano, run.capacity_nano), _STATUS.get(run.status, run.status))
            )
    amounts = (f"cash saved ({MARGINAL})", f"capacity avoided ({AMORTIZED}, hypothetical)")
    yield Table(
        title="",
        columns=columns("team", "run", *amounts, "runs", text=("run",)),
        rows=tuple(rows),
        grouped=True,
        marks={0: "strong"},
    )
    two_ends = " Two amounts of cash: if the fleet would have been there anyway, or if it would not."
    no_interval = f" No interval: {NO_INTERVAL}." if len(saved.runs) > 1 else ""
    yield (
        "Two figures that are never added: cash saved is the bill without borrowing less the bill, below zero where "
        f"borrowing cost more; capacity avoided was on no bill.{two_ends if saved.two_ends else ''} A run counts in "
        f"the period in which it ended.{no_interval}"
    )
    for run in saved.runs:
        if run.why is not None:
            yield f"{run.run_id}: {run.why}"
