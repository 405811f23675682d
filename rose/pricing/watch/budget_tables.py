"""Tables of budgets and forecasts."""

from collections.abc import Iterator, Sequence

from rose.pricing.figures import AMORTIZED
from rose.pricing.table import Column, Mark, Table, notes, report_table
from rose.pricing.watch.budget import Expected, TeamBudget


def budgets(rows: Sequence[TeamBudget]) -> Iterator[Table]:
    alarms: dict[int, Mark] = {number: "alarm" for number, row in enumerate(rows) if int(row.left.value or 0) < 0}
    unknown = [row.team for row in rows if not row.has_charges]
    reasons = sorted({row.forecast.why or row.forecast.basis for row in rows if row.has_charges})
    names = ("budget", "spent", "closed", "left", "forecast")
    money = (Column(name, "money", rows[0].spent.stamp.currency) for name in names)
    yield Table(
        title=f"Budgets of {rows[0].month}",
        view=AMORTIZED,
        stamp=rows[0].spent.stamp,
        columns=(Column("team"), *money, Column("95% interval", "figure"), Column("chance of going over", "figure")),
        rows=tuple(
            (row.team, *(getattr(row, name).value for name in names), row.forecast.short_interval, row.over.short_text)
            for row in rows
        ),
        marks=alarms,
        notes=notes("; ".join(reasons + ([f"no charge at all: {', '.join(unknown)}"] if unknown else []))),
    )


def forecasts(rows: Sequence[Expected]) -> Iterator[Table]:
    yield report_table(
        rows[0].spent.stamp,
        f"What {rows[0].month} will have cost",
        "team | spent | forecast | 95% interval",
        (
            (row.team or "the fleet", row.spent.text, row.forecast.short_text, row.forecast.short_interval)
            for row in rows
        ),
        view=AMORTIZED,
        marks={number: "strong" for number, row in enumerate(rows) if row.team is None},
        notes=notes("; ".join(dict.fromkeys(row.forecast.why or row.forecast.basis for row in rows))),
    )
