"""A report to hand on: one HTML file with everything in it, that needs no network and no script and prints well.

Of a run it shows what `rose report` shows, and then every figure there is with its unit, view and basis. Of a bill it
shows the drill-downs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from rich.table import Table as RichTable
from rich.text import Text

from rose.clock import utc
from rose.pricing.document import Report, figures
from rose.pricing.export import drilldown, facts, out
from rose.pricing.export.bill import Bill
from rose.pricing.export.drilldown import SUMMED, Kind, Table
from rose.pricing.export.out import Written
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL, Stamp
from rose.pricing.money import format_ns, format_usd
from rose.pricing.run import tables

SUFFIXES = (".html",)
TEMPLATE = "report.html.j2"
#: Rows of one drill-down that a page shows; the workbook has them all.
ROWS_SHOWN = 500
#: Width of the longest bar.
_BAR_WIDTH = 420


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar: its length in the picture's units, and what is written beside it."""

    label: str
    width: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading with a table, bars, or both. `numeric` says which columns are set flush right."""

    title: str
    says: str
    note: str = ""
    header: tuple[str, ...] = ()
    numeric: tuple[bool, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    total: tuple[str, ...] | None = None
    bars: tuple[Bar, ...] = ()


def write_run(report: Report, path: Path, *, force: bool = False, verification: str = "") -> Written:
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
    title = f"What run {report.run.name} cost"
    html = _page(title, report.stamp, about, [*_of_run(report), _every_figure(every, report.stamp)])
    total = report.amortized["total"].value
    return _write(html, path, force, len(every), {"bill": int(total or 0)})


def write_bill(bill: Bill, path: Path, *, force: bool = False) -> Written:
    """Write the drill-downs of a bill to `path`, an .html. The same bill gives the same bytes. Raises PricingError."""
    shown = drilldown.tables(bill)
    sections = [_views(bill, shown[0]), _buckets(bill), *(_of_table(table, bill.stamp) for table in shown)]
    html = _page(facts.title(bill), bill.stamp, facts.about(bill), sections)
    return _write(html, path, force, sum(len(table.rows) for table in shown), {"bill": bill.total_nano})


def _write(html: str, path: Path, force: bool, rows: int, totals: Mapping[str, int]) -> Written:
    out.suffix_of(path, SUFFIXES, "a report")

    def make(temporary: Path) -> tuple[int, Mapping[str, int]]:
        temporary.write_text(html, encoding="utf-8")
        return rows, totals

    return out.write(path, force, make)


def _page(title: str, stamp: Stamp, about: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files("rose.pricing.export").joinpath(TEMPLATE).read_text("utf-8")
    return environment.from_string(source).render(
        title=title,
        stamp=str(stamp),
        warnings=facts.warnings(stamp),
        about=about,
        sections=sections,
        definitions=facts.DEFINITIONS,
        bar_width=_BAR_WIDTH,
    )


def _of_run(report: Report) -> Iterator[Section]:
    """The tables of the terminal, with pictures between them."""
    for table in tables.tables(report):
        if isinstance(table, RichTable):
            yield _of_rich(table, report.stamp)
    says = f"{AMORTIZED}; {report.stamp}"
    cost = {bucket: figure for bucket, figure in report.amortized.items() if bucket != "total" and figure.value}
    yield Section(
        title="Amortized cost by bucket", says=says,
        bars=_bars({bucket: (int(figure.value or 0), figure.text) for bucket, figure in cost.items()}),
    )  # fmt: skip
    steps = {f"step {step}": figure for step, figure in report.accept_by_step.items() if figure.value is not None}
    if steps:
        yield Section(
            title="Trajectories the verifier accepted, by step", says=f"shares; {report.stamp}",
            bars=_bars({name: (round((figure.value or 0) * 10**6), figure.text) for name, figure in steps.items()}),
        )  # fmt: skip
    yield Section(
        title="Devices", says=says,
        header=("device", "pool", "class", "provisioned", "cost"), numeric=(False, False, False, True, True),
        rows=tuple((d.device_id, d.pool, d.device_class, d.provisioned.text, d.cost.text) for d in report.devices),
    )  # fmt: skip


def _of_rich(table: RichTable, stamp: Stamp) -> Section:
    """A table of the terminal as a section: `Heading  [view; currency, provenance]` is its title there."""
    title, _, says = _plain(table.title).rstrip("]").partition("  [")
    cells = [[_plain(cell) for cell in column.cells] for column in table.columns]
    rows = tuple(zip(*cells, strict=True))
    return Section(
        title=title,
        says=says or str(stamp),
        note=_plain(table.caption),
        header=tuple(_plain(column.header) for column in table.columns) if table.show_header else (),
        numeric=tuple(column.justify == "right" for column in table.columns),
        rows=rows,
    )


def _plain(text: object) -> str:
    return "" if text is None else text.plain if isinstance(text, Text) else Text.from_markup(str(text)).plain


def _interval(figure: Mapping[str, Any]) -> str:
    if figure["low"] is None:
        return figure["no_interval"] or ""
    return f"{figure['low']} to {'unbounded' if figure['high'] is None else figure['high']}"


def _every_figure(figures: Sequence[tuple[str, Mapping[str, Any]]], stamp: Stamp) -> Section:
    return Section(
        title="Every figure",
        says=f"each with its unit, view and basis; {stamp}",
        note="Exact: dollars in whole nano-dollars (nano_usd), times in whole nanoseconds (ns).",
        header=("figure", "shown as", "exact value", "unit", "view", "rests on", "95% interval"),
        numeric=(False, True, True, False, False, False, True),
        rows=tuple(
            (
                name, f["text"], "" if f["value"] is None else str(f["value"]), f["unit"], f["view"], f["basis"],
                _interval(f),
            )
            for name, f in figures
        ),
    )  # fmt: skip


def _views(bill: Bill, by_team: Table) -> Section:
    meaning = dict(facts.DEFINITIONS)
    lines = [(AMORTIZED, bill.charges.total_nano), (FULLY_LOADED, by_team.total(-1)), (MARGINAL, bill.marginal_nano)]
    rows = [(name, "not enough data: a figure of one whole run" if nano is None else format_usd(nano),
             "" if nano is None else f"{nano:,}", meaning[name]) for name, nano in lines]  # fmt: skip
    if bill.corrections:
        change = bill.total_nano - bill.charges.total_nano
        rows.append(("corrections posted since", format_usd(change), f"{change:,}", meaning["correction"]))
        rows.append(("amortized, with corrections", format_usd(bill.total_nano), f"{bill.total_nano:,}", ""))
    return Section(
        title="The bill, in each view",
        says=f"never added together; {bill.stamp}",
        header=("view", "dollars", "nano-dollars", "what it is"),
        numeric=(False, True, True, False),
        rows=tuple(rows),
    )


def _buckets(bill: Bill) -> Section:
    found = drilldown.by_bucket(bill.charges.frame)
    return Section(
        title="Where the money went",
        says=f"{AMORTIZED}; {bill.stamp}",
        bars=_bars({bucket: (nano, format_usd(nano)) for bucket, (_, nano) in found.items() if nano}),
    )


def _of_table(table: Table, stamp: Stamp) -> Section:
    kinds = [column.kind for column in table.columns]
    shown = table.rows[:ROWS_SHOWN]
    left = len(table.rows) - len(shown)
    summed = any(kind in SUMMED for kind in kinds) and bool(table.rows)
    return Section(
        title=table.title,
        says=f"{table.view}; {stamp}",
        note=table.note + (f" {left:,} more rows are in the workbook and in the total." if left else ""),
        header=tuple(column.name for column in table.columns),
        numeric=tuple(kind != "text" for kind in kinds),
        rows=tuple(tuple(_shown(kind, cell) for kind, cell in zip(kinds, row, strict=True)) for row in shown),
        total=tuple(
            _shown(kind, table.total(index)) if kind in SUMMED else "total" if index == 0 else ""
            for index, kind in enumerate(kinds)
        )
        if summed
        else None,
    )


def _shown(kind: Kind, value: Any) -> str:
    if kind == "usd":
        return format_usd(int(value))
    if kind == "hours":
        return format_ns(int(value))
    if kind == "count":
        return f"{value:,}"
    if kind == "gb":
        return f"{value / 1e9:,.3f}"
    if kind == "kwh":
        return f"{value / 3.6e18:,.4f}"
    return str(value)


def _bars(values: Mapping[str, tuple[int, str]]) -> tuple[Bar, ...]:
    longest = max((abs(value) for value, _ in values.values()), default=0)
    return tuple(
        Bar(label=label, width=abs(value) * _BAR_WIDTH // longest if longest else 0, text=text)
        for label, (value, text) in values.items()
    )
