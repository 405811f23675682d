"""Tables and CSV of a period's cost and savings."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from rose.clock import utc
from rose.ledger.commands.output import csv_cells
from rose.pricing.figures import AMORTIZED, MARGINAL
from rose.pricing.money import format_usd
from rose.pricing.price_books.pricebook import EXAMPLE_PRICES
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.cost import Cost, Line
from rose.pricing.table import Column, Element, Paragraph, Row, Table, columns, notes

if TYPE_CHECKING:
    from rose.pricing.closing.store import Posting
    from rose.pricing.spend.saved import PeriodSaving, Saved


def terminal(cost: Cost) -> Iterator[Element]:
    question = cost.question
    yield f"{question.calendar.text(question.period)}  [{cost.view}; {cost.stamp}]"
    yield rests_on(cost)
    if question.only:
        named = ", ".join(f"{name} {value}" for name, value in question.only.items())
        part, bill = (format_usd(nano) for nano in (cost.total.cost_nano, cost.bill_nano))
        yield f"{named} only: {part} of the period's bill of {bill}"
    yield lines(cost)


def lines(cost: Cost) -> Table:
    by, whole = cost.question.by, cost.total.cost_nano
    corrected, mixed = any(line.corrections_nano for line in cost.lines), bool(cost.open) and bool(cost.closes)
    counted = cost.view == AMORTIZED

    def row(values: Sequence[str], line: Line) -> Row:
        share = f"{line.cost_nano / whole:.1%}" if whole else "-"
        parts = (*([line.corrections_nano] if corrected else []), *([line.open_nano] if mixed else []))
        return (*values, line.cost_nano, share, *parts, *([line.ns, line.tokens] if counted else []))

    amounts = [*(["of which corrections"] if corrected else []), *(["of which open"] if mixed else [])]
    return Table(
        title="",
        columns=(
            *map(Column, by),
            Column("cost", "money"),
            Column("share", "figure"),
            *(Column(name, "money") for name in amounts),
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
    return "; ".join(notes(f"closed: {closes}" if closes else "", f"open, priced now: {gaps}" if gaps else ""))


def csv_text(cost: Cost) -> str:
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
    from rose.pricing.borrowing.comparison import ADDED, ADDED_THERE, CASH, WOULD, WOULD_NOT
    from rose.pricing.spend.saved import cash_text

    book = saved.book
    marks = [*([book.currency] if book else []), saved.provenance, *([] if saved.verified else ["UNVERIFIED LEDGER"])]
    marks += [EXAMPLE_PRICES] if book and book.example else []
    yield f"{calendar.text(saved.period)}  [{', '.join(marks)}]"

    def row(team: str, run: str, saving: PeriodSaving) -> Row:
        amounts = (saving.bought_nano, saving.added_nano, saving.capacity_nano)
        texts = ("not known" if nano is None else format_usd(nano) for nano in amounts)
        return (team, run, cash_text(saving), *texts)

    rows = [row("the fleet", "", saved.fleet)]
    for team in saved.teams:
        rows.append(row(team, "", saved.of_team(team)))
        rows += [row(team, run.run_id, run.saving) for run in saved.runs if run.team == team]
    amounts = (f"{CASH} ({MARGINAL})", ADDED_THERE, ADDED, f"capacity avoided ({AMORTIZED}, hypothetical)")
    yield Table(
        title="",
        columns=columns("team", "run", *amounts, text=("run",)),
        rows=tuple(rows),
        grouped=True,
        marks={0: "strong"},
    )
    interval, fleet = saved.fleet.cash_interval, saved.fleet
    if interval is not None:
        low, high = ("unbounded" if end is None else format_usd(end) for end in interval)
        told = (
            "" if interval[0] > 0 or (interval[1] is not None and interval[1] < 0) else ": not clearly different from 0"
        )
        yield f"The fleet's saving against buying, 95%: {low} to {high}{told}."
    elif fleet.no_interval:
        yield f"The fleet's saving against buying has no interval: {fleet.no_interval}."
    if fleet.left_out:
        names = ", ".join(fleet.left_out).replace("_", " ")
        yield f"The saving is this figure or less, since these costs are not known: {names}."
    two_ends = f" Two savings against buying: {WOULD}, or {WOULD_NOT}."
    yield (
        "Two figures that are never added. Saved against buying: what dedicated devices would have cost to buy, less "
        "what borrowing added to the bill. Capacity avoided was on no bill. The fleet's figure is computed once; runs "
        f"have shares of it.{two_ends if saved.two_ends else ''}"
    )
    whys = [("the fleet", fleet.why), *((run.run_id, run.saving.why) for run in saved.runs)]
    yield from (f"{name}: {why}" for name, why in whys if why is not None)
