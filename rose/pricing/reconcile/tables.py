"""A reconciliation for a terminal and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from itertools import groupby
from typing import Any

from rose.pricing.closing.period import Period
from rose.pricing.figures import AMORTIZED
from rose.pricing.money import NS_PER_HOUR, format_money
from rose.pricing.reconcile.compare import DEVICE_TIME, Amounts, Day, Line, Reconciliation
from rose.pricing.reconcile.reasons import parts, reason
from rose.pricing.spend.calendar import Calendar
from rose.pricing.table import Column, Element, Paragraph, Table

_LINES_SHOWN = 40
#: Of a name that a stranger chose.
_NAME_CHARACTERS = 100


def terminal(made: Reconciliation) -> Iterator[Element]:
    """The verdict, then things and days that differ most, then what is not compared."""
    facts, stamp = made.invoice, made.stamp
    period = Calendar().text(Period(stamp.from_ns, stamp.to_ns))
    yield f"{period}  [{AMORTIZED}; {stamp}]"
    numbers = f", invoice {', '.join(facts.invoice_ids)}" if facts.invoice_ids else ""
    yield Paragraph(f"{facts.path.name}: {_rows(facts.rows)}, {facts.begins} to {facts.ends}{numbers}")
    if made.rate:
        yield Paragraph(
            f"1 {facts.currency} is {made.rate.usd_per_unit:f} {stamp.currency}, the rate for {made.rate.day} in price "
            f"book {made.rate.book}: {made.rate.source}, {made.rate.source_date}"
        )
    yield Paragraph(_verdict(made))
    if made.uncovered:
        yield Paragraph(f"The invoice charges nothing on {_spans(made.uncovered)}", alarm=True)
    differing = [line for line in made.lines if reason(line, made.tolerance)]
    if differing:
        shown = differing[:_LINES_SHOWN]
        yield _table("device", stamp.currency, [(_name(line), line, reason(line, made.tolerance)) for line in shown])
    yield Paragraph(_rest("lines", made.line_count, len(differing), made))
    days = [day for day in made.days if abs(day.difference_nano) > made.tolerance * abs(day.ledger_nano)]
    if days:
        yield _table("day", stamp.currency, [(str(day.day), day, "") for day in days[:_LINES_SHOWN]])
    yield Paragraph(_rest("days", len(made.days), len(days), made))
    yield from map(Paragraph, _notes(made))


def _rest(what: str, count: int, differing: int, made: Reconciliation) -> str:
    left_off = f"; {differing - _LINES_SHOWN:,} more differ, and --json has them" if differing > _LINES_SHOWN else ""
    return f"{count - differing:,} of {count:,} {what} agree within {_percent(float(made.tolerance))}{left_off}"


def _verdict(made: Reconciliation) -> str:
    total, share, currency = made.total, made.disagreement_share, made.stamp.currency
    ledger, vendor, billed, apart = (
        format_money(nano, currency)
        for nano in (total.ledger_nano, total.effective_nano, total.billed_nano, made.disagreement_nano)
    )
    size = "" if share is None else f", {_percent(share)} of the ledger's"
    word = "within" if made.within else "beyond"
    return (
        f"Ledger {ledger}, vendor {vendor} (billed {billed}), difference {_signed(total.difference_nano, currency)}. "
        f"Device by device they differ by {apart}{size}: {word} the tolerance of {_percent(float(made.tolerance))}."
    )


def _notes(made: Reconciliation) -> Iterator[str]:
    def money(nano: int) -> str:
        return format_money(nano, made.stamp.currency)

    if any(line.kind == "unknown" for line in made.lines):
        yield "What a resource of the vendor's is, [[vendor_resource]] of the price book says."
    for apart in made.apart:
        yield (
            f"Not compared, {apart.category}: {_rows(apart.rows)}, billed {money(apart.billed_nano)}, effective "
            f"{money(apart.effective_nano)}"
        )
    for item, nano in made.not_invoiced:
        yield f"Not compared, {item}: {money(nano)} in the ledger, and the invoice has none"
    if made.outside.rows:
        outside = money(made.outside.effective_nano)
        yield f"Outside the period: {_rows(made.outside.rows)}, wholly or in part, effective {outside}"
    if made.total.corrections_nano:
        yield f"The vendor's own corrections in it: {_signed(made.total.corrections_nano, made.stamp.currency)}"
    if made.repeated:
        rows = ", ".join(f"{row} repeats {first}" for row, first in made.repeated)
        more = _more(made.repeated_count - len(made.repeated))
        yield f"Rows that are there twice, and counted: {rows}{more}"
    if made.negative:
        rows = ", ".join(f"{row} ({cell})" for row, cell in made.negative)
        yield f"Usage below zero that is no correction: rows {rows}{_more(made.negative_count - len(made.negative))}"


def _table(first: str, currency: str, rows: Sequence[tuple[str, Amounts, str]]) -> Table:
    billed = any(amounts.billed_nano != amounts.effective_nano for _, amounts, _ in rows)
    explained = any(why for _, _, why in rows)

    def row(name: str, amounts: Amounts, why: str) -> tuple[object, ...]:
        share = "" if amounts.share is None else f" ({amounts.share:+.1%})"
        sums = [amounts.ledger_nano, amounts.effective_nano, *([amounts.billed_nano] if billed else [])]
        return (name, *sums, f"{_signed(amounts.difference_nano, currency)}{share}", *([why] if explained else []))

    sides = ("ledger", "vendor", *(["billed"] if billed else []))
    return Table(
        title="",
        columns=(
            Column(first),
            *(Column(name, "money", currency, whole=True) for name in sides),
            Column("difference", "figure", whole=True),
            *([Column("likely because")] if explained else []),
        ),
        rows=tuple(row(*item) for item in rows),
    )


def _name(line: Line) -> str:
    names = f" ({', '.join(line.device_ids)})" if line.kind == "device" and line.device_ids else ""
    kind = {"devices": "devices ", "class": "class "}.get(line.kind, "")
    item = "" if line.item == DEVICE_TIME else f", {line.item}"
    name = line.name if len(line.name) <= _NAME_CHARACTERS else f"{line.name[:_NAME_CHARACTERS]}..."
    return f"{kind}{name}{names}{item}"


def _signed(nano: int, currency: str) -> str:
    return f"{'+' if nano > 0 else ''}{format_money(nano, currency)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""


def _spans(days: Sequence[date]) -> str:
    """Days that follow one another as one: `2026-10-03, 2026-10-29 to 2026-10-31`."""
    runs = [
        [day for _, day in run]
        for _, run in groupby(enumerate(days), key=lambda pair: pair[1] - timedelta(days=pair[0]))
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def to_json(made: Reconciliation) -> dict[str, Any]:
    """Amounts are whole nano-units of the ledger's currency; unknown hours are null."""
    facts = made.invoice
    return {
        "view": AMORTIZED,
        **made.stamp.to_json(),
        "within": made.within,
        "tolerance": float(made.tolerance),
        "disagreement_nano": made.disagreement_nano,
        "invoice": {
            "file": facts.path.name,
            "rows": facts.rows,
            "currency": facts.currency,
            "from": facts.begins,
            "to": facts.ends,
            "invoice_ids": list(facts.invoice_ids),
            "rate": None if made.rate is None else made.rate.to_json(),
        },
        "total": _amounts(made.total),
        "devices": [_line(line, made) for line in made.lines],
        "devices_left_off": made.line_count - len(made.lines),
        "days": [_day(day) for day in made.days],
        "device_days": [
            {"kind": day.kind, "name": day.name, "item": day.item, **_day(day)} for day in made.device_days
        ],
        "days_not_on_invoice": [str(day) for day in made.uncovered],
        "not_compared": [
            {
                "category": apart.category,
                "rows": apart.rows,
                "billed_nano": apart.billed_nano,
                "effective_nano": apart.effective_nano,
            }
            for apart in (*made.apart, *([made.outside] if made.outside.rows else []))
        ],
        "not_on_invoice": [{"item": item, "ledger_nano": nano} for item, nano in made.not_invoiced],
        "repeated_rows": {
            "count": made.repeated_count,
            "first": [{"row": row, "repeats": first} for row, first in made.repeated],
        },
        "negative_rows": {
            "count": made.negative_count,
            "first": [{"row": row, "amount": cell} for row, cell in made.negative],
        },
    }


def _line(line: Line, made: Reconciliation) -> dict[str, Any]:
    moved = parts(line)
    return {
        "kind": line.kind,
        "name": line.name,
        "item": line.item,
        "device_ids": list(line.device_ids),
        "days": {"both": line.days_both, "ledger_only": line.days_ledger, "invoice_only": line.days_invoice},
        **_amounts(line),
        "by_hours_nano": moved and moved[0],
        "by_price_nano": moved and moved[1],
        "reason": reason(line, made.tolerance) or None,
    }


def _day(day: Day) -> dict[str, Any]:
    return {"day": str(day.day), **_amounts(day)}


def _amounts(amounts: Amounts) -> dict[str, Any]:
    return {
        "ledger_nano": amounts.ledger_nano,
        "effective_nano": amounts.effective_nano,
        "billed_nano": amounts.billed_nano,
        "difference_nano": amounts.difference_nano,
        "ledger_hours": _hours(amounts.ledger_ns),
        "invoice_hours": _hours(amounts.invoice_ns),
        "repeated_nano": amounts.again_nano,
        "corrections_nano": amounts.corrections_nano,
    }


def _hours(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_HOUR
