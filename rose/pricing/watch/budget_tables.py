"""Tables of budgets and forecasts."""

from collections.abc import Iterator, Sequence

from rose.pricing.figures import AMORTIZED
from rose.pricing.table import Column, Mark, Table, columns, notes
from rose.pricing.watch.budget import Expected, TeamBudget


def budgets(rows: Sequence[TeamBudget]) -> Iterator[Table]:
    alarms: dict[int, Mark] = {number: "alarm" for number, row in enumerate(rows) if int(row.left.value or 0) < 0}
    unknown = [row.team for row in rows if not row.has_charges]
    reasons = sorted({row.forecast.why or row.forecast.basis for row in rows if row.has_charges})
    yield Table(
        title=f"Budgets of {rows[0].month}",
        view=AMORTIZED,
        stamp=rows[0].spent.stamp,
        columns=(
            Column("team"),
            *(
                Column(name, "money", rows[0].spent.stamp.currency)
                for name in ("budget", "spent", "closed", "left", "forecast")
            ),
            Column("95% interval", "figure"),
            Column("chance of going over", "figure"),
        ),
        rows=tuple(
            (
                row.team,
                row.budget.value,
                row.spent.value,
                row.closed.value,
                row.left.value,
                row.forecast.value,
                row.forecast.short_interval,
                row.over.short_text,
            )
            for row in rows
        ),
        marks=alarms,
        notes=notes("; ".join(reasons + ([f"no charge at all: {', '.join(unknown)}"] if unknown else []))),
    )


def forecasts(rows: Sequence[Expected]) -> Iterator[Table]:
    yield Table(
        title=f"What {rows[0].month} will have cost",
        view=AMORTIZED,
        stamp=rows[0].spent.stamp,
        columns=columns("team", "spent", "forecast", "95% interval"),
        rows=tuple(
            (row.team or "the fleet", row.spent.text, row.forecast.short_text, row.forecast.short_interval)
            for row in rows
        ),
        marks={number: "strong" for number, row in enumerate(rows) if row.team is None},
        notes=notes("; ".join(dict.fromkeys(row.forecast.why or row.forecast.basis for row in rows))),
    )
