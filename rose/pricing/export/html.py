"""A report to hand on: one HTML file with everything in it, that needs no network and no script and prints well.

It opens with a few sentences, the time before, budgets and the course of the cost. Then come, of a run, what `rose
report` shows, of a bill the drill-downs; what every word and symbol means; and in an appendix what an auditor wants:
exact values, digests, long tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rose.clock import utc
from rose.pricing.document import Report, figures
from rose.pricing.export import drilldown, facts, headline, markup, out
from rose.pricing.export.bill import Bill
from rose.pricing.export.context import Context, Point
from rose.pricing.export.context import of_bill as context_of_bill
from rose.pricing.export.out import Written
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL, Stamp
from rose.pricing.money import format_usd, signed_usd
from rose.pricing.run import tables
from rose.pricing.table import Column, Table, columns

SUFFIXES = (".html",)
TEMPLATE = "report.html.j2"
#: Rows of one drill-down that a page shows; the workbook has them all.
ROWS_SHOWN = 500
#: Width of the longest bar.
_BAR_WIDTH = 420
#: Width and height of the picture of a course.
_COURSE_WIDTH, _COURSE_HEIGHT = 780, 120
#: Drill-downs that are long, or for an auditor: they stand in the appendix.
_APPENDIX = ("By bucket and day", "By policy version and task", "Prices used")
#: Of what a bill is about, the words that stand in the appendix.
_DIGESTS = ("price book's SHA-256", "charges")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar: its length in the picture's units, and what is written beside it."""

    label: str
    width: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pillar:
    """One column of a course, in the picture's units from its upper left; `pale` is of the time before."""

    left: float
    top: float
    width: float
    height: float
    pale: bool
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A heading with bars or a course."""

    title: str
    terms: str
    note: str = ""
    bars: tuple[Bar, ...] = ()
    course: tuple[Pillar, ...] = ()


Section = Table | Picture


def write_run(report: Report, path: Path, context: Context, *, force: bool = False, verification: str = "") -> Written:
    """Write the report of a run to `path`, an .html. The same report gives the same bytes. Raises PricingError.

    `verification` says whether, and up to when, the ledger was verified, in a line.
    """
    about = [
        ("run", f"{report.run.name} ({report.run.run_id}), {report.run.status}"),
        ("period", f"{utc(report.stamp.from_ns)} to {utc(report.stamp.to_ns)}"),
        ("currency", report.stamp.currency),
        ("provenance", report.stamp.provenance),
        ("ledger", facts.ledger(report.stamp, verification)),
        ("serving traffic", report.run.trace or "no trace"),
        *([("kernels", tables.NATIVE_KERNELS)] if report.run.native_kernels else []),
        ("price book", report.stamp.book.line),
        ("price book's SHA-256", report.price_book.sha256),
    ]
    every = tuple(figures(report.to_json()))
    html = _page(
        f"What run {report.run.name} cost",
        report.stamp,
        about,
        [*_compared(context, {b: f.value for b, f in report.amortized.items()}, report.stamp), *_of_run(report)],
        sentences=headline.of_run(report, context),
        appendix=[_every_figure(every, report.stamp)],
    )
    total = report.amortized["total"].value
    return _write(html, path, force, len(every), {"bill": int(total or 0)})


def write_bill(bill: Bill, path: Path, context: Context | None = None, *, force: bool = False) -> Written:
    """Write the drill-downs of a bill to `path`, an .html, beside its context, read from its ledger where None.

    The same bill and context give the same bytes. Raises PricingError, LedgerError.
    """
    context = context or context_of_bill(bill)
    shown = drilldown.tables(bill)
    spent: dict[str, int | float | None] = {b: nano for b, (_, nano) in drilldown.by_bucket(_all(bill)).items()}
    body = [table for table in shown if table.name not in _APPENDIX]
    html = _page(
        facts.title(bill),
        bill.stamp,
        facts.about(bill),
        [
            *_compared(context, {**spent, "total": bill.total_nano}, bill.stamp),
            _views(bill, shown[0]),
            _buckets(bill),
            *body,
        ],
        sentences=headline.of_bill(bill, context),
        appendix=[_exact(bill, shown[0]), *(table for table in shown if table.name in _APPENDIX)],
    )
    return _write(html, path, force, sum(len(table.rows) for table in shown), {"bill": bill.total_nano})


def _all(bill: Bill) -> pl.DataFrame:
    return pl.concat([part.frame for part in bill.parts])


def _write(html: str, path: Path, force: bool, rows: int, totals: Mapping[str, int]) -> Written:
    out.suffix_of(path, SUFFIXES, "a report")

    def make(temporary: Path) -> tuple[int, Mapping[str, int]]:
        temporary.write_text(html, encoding="utf-8")
        return rows, totals

    return out.write(path, force, make)


def _page(
    title: str,
    stamp: Stamp,
    about: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    *,
    sentences: Sequence[str] = (),
    appendix: Sequence[Section] = (),
) -> str:
    return markup.page(
        TEMPLATE,
        title=title,
        stamp=stamp,
        warnings=facts.warnings(stamp),
        sentences=sentences,
        about=[line for line in about if line[0] not in _DIGESTS],
        digests=[line for line in about if line[0] in _DIGESTS],
        sections=sections,
        appendix=appendix,
        definitions=(*facts.DEFINITIONS, *facts.SYMBOLS),
        rows_max=ROWS_SHOWN,
        course_width=_COURSE_WIDTH,
        course_height=_COURSE_HEIGHT,
    )


def _compared(context: Context, spent: Mapping[str, int | float | None], stamp: Stamp) -> Iterator[Section]:
    """The time before, the budgets and the course, each where there is one. `spent` is by bucket, and `total`."""
    before = context.before
    if before.by_bucket is not None and before.total_nano is not None:
        earlier = {**before.by_bucket, "total": before.total_nano}
        names = [name for name in dict.fromkeys((*spent, *earlier)) if name != "total"]
        rows = [
            (
                name,
                format_usd(int(spent.get(name) or 0)),
                format_usd(earlier.get(name, 0)),
                signed_usd(int(spent.get(name) or 0) - earlier.get(name, 0)),
            )
            for name in (*names, "total")
            if spent.get(name) or earlier.get(name)
        ]
        yield Table(
            title="Beside what came before",
            view=AMORTIZED,
            stamp=stamp,
            notes=(f"Before: {before.name}.",),
            columns=columns("bucket", "now", "before", "change"),
            rows=tuple(rows[:-1]),
            footer=tuple(rows[-1:]),
        )
    if len(context.course) > 1:
        first, last = context.course[0], context.course[-1]
        dearest = max(context.course, key=lambda point: point.cost_nano)
        yield Picture(
            title="The course of the cost",
            terms=f"{AMORTIZED}; {stamp}",
            course=_course(context.course),
            note=f"{first.label} to {last.label}, UTC; the highest column is {dearest.label}, "
            f"{format_usd(dearest.cost_nano)}." + (" Pale: the time before." if first.before else ""),
        )
    if context.budgets:
        yield Table(
            title="Budgets",
            view=AMORTIZED,
            stamp=stamp,
            notes=("Spent and left are of the whole month so far, not of this period alone.",),
            columns=columns("month", "team", "budget", "spent", "left", text=("team",)),
            rows=tuple(
                (
                    b.month,
                    b.team,
                    format_usd(b.budget_nano),
                    *(
                        ("not known", "not known")
                        if b.spent_nano is None
                        else (format_usd(b.spent_nano), format_usd(b.budget_nano - b.spent_nano))
                    ),
                )
                for b in context.budgets
            ),
            marks={number: "alarm" for number, b in enumerate(context.budgets) if (b.spent_nano or 0) > b.budget_nano},
        )


def _course(points: Sequence[Point]) -> tuple[Pillar, ...]:
    highest = max([1, *(point.cost_nano for point in points)])
    step = _COURSE_WIDTH / len(points)
    heights = [_COURSE_HEIGHT * max(point.cost_nano, 0) / highest for point in points]
    return tuple(
        Pillar(
            left=round(n * step, 2),
            top=round(_COURSE_HEIGHT - height, 2),
            width=round(step * 0.85, 2),
            height=round(height, 2),
            pale=point.before,
            text=f"{point.label}: {format_usd(point.cost_nano)}",
        )
        for n, (point, height) in enumerate(zip(points, heights, strict=True))
    )


def _of_run(report: Report) -> Iterator[Section]:
    """The tables of the terminal, with pictures between them."""
    yield from (part for part in tables.tables(report) if isinstance(part, Table))
    terms = f"{AMORTIZED}; {report.stamp}"
    cost = {bucket: figure for bucket, figure in report.amortized.items() if bucket != "total" and figure.value}
    yield Picture(
        title="Amortized cost by bucket",
        terms=terms,
        bars=_bars({bucket: (int(figure.value or 0), figure.text) for bucket, figure in cost.items()}),
    )
    steps = {f"step {step}": figure for step, figure in report.accept_by_step.items() if figure.value is not None}
    if steps:
        yield Picture(
            title="Trajectories the verifier accepted, by step",
            terms=f"shares; {report.stamp}",
            bars=_bars({name: (round((figure.value or 0) * 10**6), figure.text) for name, figure in steps.items()}),
        )
    yield Table(
        title="Devices",
        view=AMORTIZED,
        stamp=report.stamp,
        columns=columns("device", "pool", "class", "provisioned", "cost", text=("pool", "class")),
        rows=tuple((d.device_id, d.pool, d.device_class, d.provisioned.text, d.cost.text) for d in report.devices),
    )


def _interval(figure: Mapping[str, Any]) -> str:
    if figure["low"] is None:
        return figure["no_interval"] or ""
    return f"{figure['low']} to {'unbounded' if figure['high'] is None else figure['high']}"


def _every_figure(figures: Sequence[tuple[str, Mapping[str, Any]]], stamp: Stamp) -> Table:
    return Table(
        title="Every figure",
        view="each with its unit, view and basis",
        stamp=stamp,
        notes=("Exact: dollars in whole nano-dollars (nano_usd), times in whole nanoseconds (ns).",),
        columns=columns(
            "figure",
            "shown as",
            "exact value",
            "unit",
            "view",
            "rests on",
            "95% interval",
            text=("unit", "view", "rests on"),
        ),
        rows=tuple(
            (
                name,
                f["text"],
                "" if f["value"] is None else str(f["value"]),
                f["unit"],
                f["view"],
                f["basis"],
                _interval(f),
            )
            for name, f in figures
        ),
    )


def _lines(bill: Bill, by_team: Table) -> list[tuple[str, int | None, str]]:
    """Name, nano-dollars and meaning of the bill in each view, and of its corrections."""
    meaning = dict(facts.DEFINITIONS)
    views = [(AMORTIZED, bill.charges.total_nano), (FULLY_LOADED, by_team.total(3)), (MARGINAL, bill.marginal_nano)]
    lines = [(name, nano, meaning[name]) for name, nano in views]
    if bill.corrections:
        lines.append(("corrections posted since", bill.total_nano - bill.charges.total_nano, meaning["correction"]))
        lines.append(("amortized, with corrections", bill.total_nano, ""))
    return lines


def _views(bill: Bill, by_team: Table) -> Table:
    unknown = "not enough data: a figure of one whole run"
    return Table(
        title="The bill, in each view",
        view="never added together",
        stamp=bill.stamp,
        columns=columns("view", "dollars", "what it is", text=("what it is",)),
        rows=tuple(
            (name, unknown if nano is None else format_usd(nano), words) for name, nano, words in _lines(bill, by_team)
        ),
    )


def _exact(bill: Bill, by_team: Table) -> Table:
    return Table(
        title="The bill to the nano-dollar",
        view="never added together",
        stamp=bill.stamp,
        columns=(Column("view"), Column("nano-dollars", "count")),
        rows=tuple((name, nano) for name, nano, _ in _lines(bill, by_team) if nano is not None),
    )


def _buckets(bill: Bill) -> Picture:
    by_bucket = drilldown.by_bucket(bill.charges.frame)
    return Picture(
        title="Where the money went",
        terms=f"{AMORTIZED}; {bill.stamp}",
        bars=_bars({bucket: (nano, format_usd(nano)) for bucket, (_, nano) in by_bucket.items() if nano}),
    )


def _bars(values: Mapping[str, tuple[int, str]]) -> tuple[Bar, ...]:
    longest = max((abs(value) for value, _ in values.values()), default=0)
    return tuple(
        Bar(label=label, width=abs(value) * _BAR_WIDTH // longest if longest else 0, text=text)
        for label, (value, text) in values.items()
    )
