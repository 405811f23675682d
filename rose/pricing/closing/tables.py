"""Closed periods as tables, each with its view, currency, period and provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rose.clock import utc
from rose.pricing.closing.period import hour_text
from rose.pricing.closing.records import Posting
from rose.pricing.closing.statement import Statement
from rose.pricing.figures import AMORTIZED
from rose.pricing.money import format_usd, signed_usd
from rose.pricing.table import Element, Table, columns, notes


def closes(posted: Mapping[str, Sequence[Posting]]) -> Iterator[Table]:
    """Every close, with its corrections."""
    rows = []
    for close_id, (first, *later) in posted.items():
        corrected = sum(posting.cost_nano for posting in later)
        rows.append(
            (
                close_id + ("" if first.verified else " (UNVERIFIED)"),
                hour_text(first.from_ns),
                hour_text(first.to_ns),
                format_usd(first.cost_nano),
                f"{len(later)}: {signed_usd(corrected)}" if later else "none",
                format_usd(first.cost_nano + corrected),
            )
        )
    names = ("close", "from", "to", "closed", "corrections", "total")
    yield Table(
        title="Closed periods", view="amortized; USD", columns=columns(*names, whole=("close",)), rows=tuple(rows)
    )


def statement(stated: Statement) -> Iterator[Element]:
    """A close: who and when, its corrections, and the drill-down."""
    first, *later = stated.close.posted
    stamp = stated.close.stamp
    yield f"{stated.close.close_id}: {utc(stamp.from_ns)} to {utc(stamp.to_ns)}, {stamp}"
    yield f"closed {utc(first.posted_ns)} by {first.posted_by}, ROSE {first.rose_version}"
    yield stamp.book.line
    open_runs = f"; open runs: {', '.join(first.open_runs)}" if first.open_runs else ""
    yield f"SHA-256 of the close {first.sha256}{open_runs}"
    if later:
        yield Table(
            title="Corrections",
            view=AMORTIZED,
            stamp=stamp,
            columns=columns("no.", "posted", "amount", "rows", "why, and by whom", text=("why, and by whom",)),
            rows=tuple(
                (
                    str(posting.number),
                    utc(posting.posted_ns)[:19] + "Z",
                    signed_usd(posting.cost_nano),
                    f"{posting.rows:,}",
                    f"{posting.reason} ({posting.posted_by})" + ("" if posting.verified else " UNVERIFIED LEDGER"),
                )
                for posting in later
            ),
        )
    yield _charges(stated)


def _charges(stated: Statement) -> Table:
    by, total = stated.by, stated.total
    blank = [""] * (len(by) - 1) if by else []
    parts = f"closed {stated.closed.text} + corrections {stated.corrections.text} = {total.text}"
    return Table(
        title=" by ".join(("Charges", *by)),
        view=total.view,
        stamp=stated.close.stamp,
        columns=columns(*by, "cost", "share", "time", "tokens", text=by),
        rows=tuple(
            (
                *line.values,
                line.cost.text,
                line.share.text,
                *(figure.text if figure else "-" for figure in (line.time, line.tokens)),
            )
            for line in stated.lines
        ),
        footer=((*(["total", *blank] if by else []), total.text, "100.0%", "", ""),),
        notes=notes(parts if len(stated.close.posted) > 1 else ""),
    )
