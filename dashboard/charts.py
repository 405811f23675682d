"""The charts. Colours are for colour-blind readers too (by Okabe and Ito, and Tol); each has one meaning everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

import altair as alt
import polars as pl
import streamlit as st

from dashboard import amounts
from rose.pricing.figures import Figure
from rose.text import visible

#: Bucket to colour, in the order in which buckets are stacked.
BUCKET_COLOURS: Mapping[str, str] = {
    "serving": "#0072B2",
    "rollout": "#E69F00",
    "train": "#009E73",
    "sync": "#CC79A7",
    "activation": "#56B4E9",
    "headroom": "#F0E442",
    "idle": "#D5D9DD",
    "unaccounted": "#D55E00",
    "transfer": "#7B6FD0",
    "energy": "#8C564B",
}
#: Orange is work of rollouts wherever it stands; what serving takes back has colours of its own.
BORROWED, DEDICATED = "#E69F00", "#0F6E84"
COST_COLOURS: Mapping[str, str] = {"rollouts": "#E69F00", "all else": "#7A8794"}
CLOSING_COLOURS: Mapping[str, str] = {
    "released": "#117733",
    "preempted": "#882255",
    "expired": "#999933",
    "open": "#88CCEE",
}
PREEMPTION_COLOURS: Mapping[str, str] = {"yield": "#6699CC", "cut": "#AA4499", "revoke": "#882255"}
#: Kinds of the steps of a waterfall.
WHOLE, MORE, LESS, UNKNOWN = "sum so far", "costs more", "costs less", "not known"
STEP_COLOURS: Mapping[str, str] = {WHOLE: "#5B6B7A", MORE: "#D55E00", LESS: "#009E73"}
#: For what is no bucket of ours.
_EDGE = "#7A8794"
_OTHER = "#9fb3c8"
_ROW_PX = 40
#: From so many days on, the axis chooses which it names.
_DAYS_NAMED = 8


def ink() -> str:
    """Of text and rules that are drawn on the page's own background."""
    return "#e8edf2" if is_dark() else "#1f2933"


def is_dark() -> bool:
    """Whether the page is drawn on a dark background."""
    return bool(st.context.theme.type == "dark")


def budget() -> str:
    """Of lines of budgets, which are drawn on the page's own background and on shaded time."""
    return "#FF9D94" if is_dark() else "#B3261E"


def coloured(field: str, colours: Mapping[str, str], title: str | None = None, columns: int = 3) -> alt.Color:
    """`columns` of the legend side by side: as many as a phone has room for right of the chart's own labels."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    legend = alt.Legend(title=title, orient="top", symbolType="square", columns=columns)
    return alt.Color(f"{field}:N", scale=scale, legend=legend)


def _step() -> alt.X:
    return alt.X("step:Q", title="RL step", axis=alt.Axis(tickMinStep=1, format="d", grid=False))


def money_by_day(frame: pl.DataFrame, currency: str) -> alt.Chart:
    """One bar for each day or month, divided by bucket. Columns: day, bucket, usd, text."""
    order = pl.col("bucket").replace_strict({b: n for n, b in enumerate(BUCKET_COLOURS)}, default=len(BUCKET_COLOURS))
    present = set(frame["bucket"])
    colours = {bucket: colour for bucket, colour in BUCKET_COLOURS.items() if bucket in present}
    colours |= dict.fromkeys(sorted(present - set(BUCKET_COLOURS)), _OTHER)
    return (
        alt.Chart(frame.with_columns(order=order), height=280)
        .mark_bar(size=max(4, min(60, 900 // frame["day"].n_unique())))
        .encode(
            x=alt.X("day:O", title="UTC", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("usd:Q", title=f"cost ({currency})"),
            color=coloured("bucket", colours),
            order="order:Q",
            tooltip=["day:O", "bucket:N", alt.Tooltip("text:N", title="cost")],
        )
    )


def cost_by_day(frame: pl.DataFrame, of_day: float | None, currency: str) -> alt.LayerChart:
    """A bar for each UTC day, rollouts below all else, and the budget `of_day` as a line. Columns: day, what, amount,
    text."""
    base = alt.Chart(frame, height=260)
    bars = base.mark_bar().encode(
        x=alt.X("yearmonthdate(day):T", title="day (UTC)", axis=_days(frame["day"].unique().sort().to_list())),
        y=alt.Y("amount:Q", title=f"cost ({currency})"),
        color=coloured("what", COST_COLOURS),
        order=alt.Order("what:N", sort="descending"),
        tooltip=[alt.Tooltip("day:T", format="%Y-%m-%d"), "what:N", alt.Tooltip("text:N", title="cost")],
    )
    if of_day is None:
        return alt.layer(bars)
    line = alt.Chart(pl.DataFrame({"amount": [of_day], "label": ["budget of a day"]}))
    return alt.layer(
        bars,
        line.mark_rule(color=budget(), strokeDash=[8, 4], strokeWidth=2).encode(y="amount:Q"),
        line.mark_text(color=ink(), align="left", dy=-7, x=6).encode(y="amount:Q", text="label:N"),
    )


def _days(days: Sequence[date]) -> alt.Axis:
    """An axis of days: of a few each has one tick, where else there would be ticks for hours and for the day after."""
    few = [alt.DateTime(year=day.year, month=day.month, date=day.day) for day in days]
    return alt.Axis(format="%Y-%m-%d", labelOverlap=True, values=few if len(few) < _DAYS_NAMED else alt.Undefined)


def teams(frame: pl.DataFrame, currency: str) -> alt.Chart:
    """Teams by what they cost, the dearest at the top; a click picks one. Columns: team, cost, for rollouts."""
    pick = alt.selection_point(name="team", fields=["team"])
    return (
        alt.Chart(frame, height=_ROW_PX * max(frame.height, 2) + 40)
        .mark_bar(color=COST_COLOURS["all else"])
        .encode(
            y=alt.Y("team:N", title=None, sort="-x", axis=alt.Axis(labelLimit=220)),
            x=alt.X("cost:Q", title=f"cost of the period ({currency})"),
            tooltip=["team:N", alt.Tooltip("cost:Q", format=",.2f"), alt.Tooltip("for rollouts:Q", format=",.2f")],
        )
        .add_params(pick)
    )


def budgets(frame: pl.DataFrame, currency: str) -> alt.LayerChart:
    """Spent as a bar, the forecast as a point with its 95% interval, the budget as a tick.

    Columns: team, spent, budget, forecast, low, high, text.
    """
    base = alt.Chart(frame, height=_ROW_PX * max(frame.height, 2) + 60)
    y = alt.Y("team:N", title=None, sort=None)
    title = f"{currency} in the month: bar spent, point forecast with its 95% interval, tick budget"
    domain = from_zero([*frame["spent"], *frame["budget"], *frame["high"]])
    x = alt.X("spent:Q", title=title, scale=alt.Scale(domain=domain))
    tooltip = ["team:N", alt.Tooltip("text:N", title="spent, forecast, budget")]
    return (
        base.mark_bar(size=14, color="#56B4E9").encode(y=y, x=x, tooltip=tooltip)
        + base.mark_rule(strokeWidth=2, color=ink()).encode(y=y, x=alt.X("low:Q", title=title), x2="high:Q")
        + base.mark_point(filled=True, size=80, color=ink(), opacity=1).encode(y=y, x="forecast:Q", tooltip=tooltip)
        + base.mark_tick(color=budget(), thickness=3, size=30).encode(y=y, x="budget:Q", tooltip=tooltip)
    )


def interval_rows(figures: Mapping[str, Figure], count: int = 1) -> pl.DataFrame:
    """Amounts for so many, for `intervals`."""

    def units(nano: float | None) -> float | None:
        return None if nano is None else nano * count / 1e9

    def text(nano: float) -> str:
        return amounts.amount(round(nano * count), currency)

    rows = []
    for name, figure in figures.items():
        currency = figure.stamp.currency
        spread = figure.no_interval or "no interval"
        if figure.low is not None:
            spread = f"{text(figure.low)} to {'unbounded' if figure.high is None else text(figure.high)}"
        ends = {"usd": units(figure.value), "low": units(figure.low), "high": units(figure.high)}
        rows.append({"name": name, **ends, "text": text(figure.value or 0), "range": spread})
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(("usd", "low", "high"), pl.Float64))


def intervals(frame: pl.DataFrame, title: str) -> alt.LayerChart:
    """Points with their 95% intervals. Columns: name, usd, low, high, text."""
    base = alt.Chart(frame, height=_ROW_PX * max(frame.height, 2) + 100)
    y = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=260))
    domain = from_zero([*frame["usd"], *frame["high"]])
    x = alt.X("usd:Q", title=title, scale=alt.Scale(domain=domain))
    tooltip = ["name:N", alt.Tooltip("text:N", title="cost"), alt.Tooltip("range:N", title="95% interval")]
    return (
        base.mark_rule(strokeWidth=3, color="#9fb3c8").encode(y=y, x=alt.X("low:Q", title=title), x2="high:Q")
        + base.mark_point(filled=True, size=110, color="#0072B2", opacity=1).encode(y=y, x=x, tooltip=tooltip)
        + base.mark_text(align="left", dx=4, dy=-12, color=ink()).encode(y=y, x=x, text="text:N")
    )


def waterfall(frame: pl.DataFrame, title: str) -> alt.LayerChart:
    """Steps below each other, each from where the one before it ended. Columns: name, from, to, kind, text, why; a step
    that is not known has its place, and no bar."""
    y = alt.Y("name:N", title=None, sort=[*map(visible, frame["name"])], axis=alt.Axis(labelLimit=260))
    ends = [*frame["from"], *frame["to"]]
    base = alt.Chart(frame, height=28 * frame.height + 80)
    x = alt.X("from:Q", title=title, scale=alt.Scale(domain=from_zero(ends)), axis=alt.Axis(tickCount=6))
    bars = (
        base.transform_filter(f"datum.kind != '{UNKNOWN}'")
        .mark_bar(size=16)
        .encode(
            y=y,
            x=x,
            x2="to:Q",
            color=coloured("kind", STEP_COLOURS, columns=1),
            tooltip=["name:N", alt.Tooltip("text:N", title="amount"), alt.Tooltip("why:N")],
        )
    )
    texts = base.mark_text(align="left", dx=6, color=ink()).encode(y=y, x="right:Q", text="text:N")
    return bars + texts


def from_zero(values: Sequence[float | None]) -> list[float]:
    """An axis from 0 (or below, for what is below) with room for a label at its right."""
    known = [value for value in values if value is not None]
    return [min(0.0, *known), max(0.0, *known) * 1.2 or 1.0] if known else [0.0, 1.0]


def holds(frame: pl.DataFrame) -> alt.Chart:
    """Why rollouts were refused devices, the longest at the top. Columns: reason, why, seconds, refusals."""
    return (
        alt.Chart(frame, height=28 * max(frame.height, 2) + 40)
        .mark_bar(color=BUCKET_COLOURS["headroom"], stroke=_EDGE, strokeWidth=0.5)
        .encode(
            y=alt.Y("why:N", title=None, sort="-x", axis=alt.Axis(labelLimit=320)),
            x=alt.X("seconds:Q", title="seconds that rollouts were refused"),
            tooltip=["reason:N", alt.Tooltip("seconds:Q", format=",.1f"), alt.Tooltip("refusals:Q", format=",")],
        )
    )


def by_step(frame: pl.DataFrame, field: str, title: str, colour: str, axis_format: str = "~s") -> alt.LayerChart:
    """One value by RL step. Columns: step and `field`."""
    base = alt.Chart(frame.filter(pl.col(field).is_not_null()), height=210).encode(
        x=_step(),
        y=alt.Y(f"{field}:Q", title=title, axis=alt.Axis(format=axis_format)),
        tooltip=["step:Q", alt.Tooltip(f"{field}:Q", title=title, format=axis_format)],
    )
    return base.mark_line(color=colour, strokeWidth=2) + base.mark_point(color=colour, filled=True, size=40, opacity=1)
