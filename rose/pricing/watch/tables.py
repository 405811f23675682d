"""Budgets, forecasts and days that stand out as tables, each with its view, currency, period and provenance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rose.pricing.figures import AMORTIZED
from rose.pricing.table import Column, Element, Mark, Table, columns, notes
from rose.pricing.watch.anomaly import RULE, Anomaly, Watch, roughly
from rose.pricing.watch.budget import Expected, TeamBudget
from rose.pricing.watch.effects import BY


def budgets(rows: Sequence[TeamBudget]) -> Iterator[Table]:
    """Budgets of a month beside what was spent, and the forecast."""
    alarms: dict[int, Mark] = {number: "alarm" for number, row in enumerate(rows) if int(row.left.value or 0) < 0}
    unknown = [row.team for row in rows if not row.known]
    reasons = sorted({row.forecast.why or row.forecast.basis for row in rows if row.known})
    yield Table(
        title=f"Budgets of {rows[0].month}", view=AMORTIZED, stamp=rows[0].spent.stamp,
        columns=(
            Column("team"),
            *(
                Column(name, "money", rows[0].spent.stamp.currency)
                for name in ("budget", "spent", "of it closed", "left", "forecast")
            ),
            Column("95% interval", "figure"), Column("chance of going over", "figure"),
        ),
        rows=tuple(
            (
                row.team, row.budget.value, row.spent.value, row.closed.value, row.left.value, row.forecast.value,
                row.forecast.short_interval, row.over.short_text,
            )
            for row in rows
        ),
        marks=alarms,
        notes=notes("; ".join(reasons + ([f"no charge at all: {', '.join(unknown)}"] if unknown else []))),
    )  # fmt: skip


def forecasts(rows: Sequence[Expected]) -> Iterator[Table]:
    """What a month will have cost: the fleet, then each team."""
    yield Table(
        title=f"What {rows[0].month} will have cost", view=AMORTIZED, stamp=rows[0].spent.stamp,
        columns=columns("team", "spent", "forecast", "95% interval"),
        rows=tuple(
            (row.team or "the fleet", row.spent.text, row.forecast.short_text, row.forecast.short_interval)
            for row in rows
        ),
        marks={number: "strong" for number, row in enumerate(rows) if row.team is None},
        notes=notes(
            "; ".join(dict.fromkeys(row.forecast.why or row.forecast.basis for row in rows)),
            *(row.rate.text for row in rows[:1] if row.rate is not None),
        ),
    )  # fmt: skip


def watch(watched: Watch) -> Iterator[Element]:
    """Days that stand out, each with what drove it; or that there are none, or too few days to say."""
    yield f"{len(watched.judged)} days judged ({watched.stamp}): {RULE}."
    if left := watched.not_judged:
        days = f"{left[0]}" + (f" to {left[-1]}" if len(left) > 1 else "")
        yield f"not enough data for {len(left)} days ({days}): too few charged days come before them"
    if watched.judged and not watched.anomalies:
        yield "No day stands out."
    for anomaly in watched.anomalies:
        yield _anomaly(anomaly)


def _anomaly(anomaly: Anomaly) -> Table:
    away = "" if anomaly.deviations is None else f", {anomaly.deviations:.1f} deviations"
    change, value = anomaly.change, anomaly.value
    rows = []
    for name in BY:
        largest_first = sorted(change.by(name).items(), key=lambda item: (-abs(sum(item[1].values())), item[0]))
        for key, effects in largest_first:
            amounts = [roughly(effects[effect]) for effect in change.effects]
            rows.append((name.replace("_", " "), key, *amounts, roughly(sum(effects.values()))))
    return Table(
        title=f"{anomaly.day}: {anomaly.metric} {value.text}, {roughly(change.total)} from {anomaly.median.text} on "
        f"{anomaly.compared_with}{away}",
        view=f"{value.unit.removeprefix('nano_')}; {value.view}", stamp=value.stamp,
        columns=columns("by", "", *change.effects, "change", text=("",)), rows=tuple(rows), grouped=True,
        footer=(("all", "", *map(roughly, change.effects.values()), roughly(change.total)),),
        notes=notes(anomaly.driver),
    )  # fmt: skip
