"""The charts. A bucket has one colour in all charts. The palettes of Okabe, Ito and Tol suit colour-blind readers."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import altair as alt
import polars as pl
import streamlit as st

from dashboard import format as words
from rose.events import BUCKETS
from rose.terminal import visible

T = TypeVar("T")

BUCKET_COLOURS: Mapping[str, str] = {  # In stacking order.
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
#: Orange is rollout work; preemptions have other colours.
_COST_COLOURS: Mapping[str, str] = {"rollouts": "#E69F00", "all else": "#7A8794"}
_CLOSING_COLOURS = {"released": "#117733", "preempted": "#882255", "expired": "#999933", "open": "#88CCEE"}
_PREEMPTION_COLOURS: Mapping[str, str] = {"yield": "#6699CC", "cut": "#AA4499", "revoke": "#882255"}
WHOLE, MORE, LESS = "sum so far", "costs more", "costs less"
_STEP_COLOURS: Mapping[str, str] = {WHOLE: "#5B6B7A", MORE: "#D55E00", LESS: "#009E73"}
#: On a light page, and on a dark one.
_LINE_COLOURS = {"p99": "#004C7A", "p50": "#0080C7"}, {"p99": "#E3F3FD", "p50": "#7CC8F2"}
_INK, _LIMIT = ("#1f2933", "#e8edf2"), ("#B3261E", "#FF9D94")
_BLUE = "#0072B2", "#56B4E9"
_LANE_PX, _LANE_MIN_PX = 34, 40
_POINTS_MAX = 40
_CLOCK, _DAY = "%H:%M:%S", "%Y-%m-%d"
_LABEL_CHARACTERS = 34


def _themed(colours: tuple[T, T]) -> T:
    return colours[st.context.theme.type == "dark"]


def _coloured(field: str, colours: Mapping[str, str], present: pl.Series, columns: int = 3) -> alt.Color:
    values = set(present)
    shown = {name: colour for name, colour in colours.items() if name in values}
    scale = alt.Scale(domain=list(shown), range=list(shown.values()))
    legend = alt.Legend(title=None, orient="top", symbolType="square", columns=columns)
    return alt.Color(f"{field}:N", scale=scale, legend=legend)


def _from_zero(values: Sequence[float | None]) -> list[float]:
    numbers = [value for value in values if value is not None]
    low, high = min([0.0, *numbers]), max([0.0, *numbers])
    return [low, (high + (high - low) / 6) or 1.0]


def _labels(frame: pl.DataFrame, field: str) -> alt.Y:
    names = [visible(name) for name in frame[field].unique(maintain_order=True)]
    lines = {name: textwrap.wrap(name, _LABEL_CHARACTERS) for name in names}
    axis = alt.Axis(labelExpr=f"({json.dumps(lines)})[datum.label]", labelLimit=260, labelOverlap=False)
    return alt.Y(f"{field}:N", title=None, sort=names, axis=axis)


def cost_by_day(frame: pl.DataFrame, of_day: float | None) -> alt.LayerChart:
    """Draw cost by UTC day, and the daily budget `of_day` (USD). Columns: day, what (`rollouts`, ...), amount, text."""
    shown = frame.with_columns(pl.col("day").cast(pl.String))
    plain = alt.Chart(shown, height=280).mark_bar(size=max(4, min(60, 900 // shown["day"].n_unique())))
    bars = plain.encode(
        x=alt.X("day:O", title="day (UTC)", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("amount:Q", title="cost (USD)"),
        color=_coloured("what", _COST_COLOURS, frame["what"]),
        order=alt.Order("what:N", sort="descending"),
        tooltip=["day:O", "what:N", alt.Tooltip("text:N", title="cost")],
    )
    if of_day is None:
        return alt.layer(bars)
    line = alt.Chart(pl.DataFrame({"amount": [of_day], "label": ["budget of a day"]}))
    return alt.layer(
        bars,
        line.mark_rule(color=_themed(_LIMIT), strokeDash=[8, 4], strokeWidth=2).encode(y="amount:Q"),
        line.mark_text(color=_themed(_INK), align="left", dy=-7).encode(x=alt.value(6), y="amount:Q", text="label:N"),
    )


def ranked(frame: pl.DataFrame) -> alt.LayerChart:
    """Draw a bar for each name, divided by bucket. Columns: name, bucket, cost, text, total, text of total."""
    order = pl.col("bucket").replace_strict({b: n for n, b in enumerate(BUCKET_COLOURS)}, default=len(BUCKET_COLOURS))
    base = alt.Chart(frame.with_columns(order=order), height=34 * max(frame["name"].n_unique(), 2) + 110)
    y, scale = _labels(frame, "name"), alt.Scale(domain=_from_zero(frame["total"].to_list()))
    colours = {**BUCKET_COLOURS, **dict.fromkeys(sorted(set(frame["bucket"]) - set(BUCKET_COLOURS)), "#9fb3c8")}
    bars = base.mark_bar().encode(
        y=y,
        x=alt.X("cost:Q", title="cost (USD)", scale=scale, axis=alt.Axis(tickCount=6)),
        color=_coloured("bucket", colours, frame["bucket"], columns=4),
        order="order:Q",
        tooltip=["name:N", "bucket:N", alt.Tooltip("text:N", title="cost")],
    )
    ends = alt.Chart(frame.unique("name", maintain_order=True))
    return bars + ends.mark_text(align="left", dx=6, color=_themed(_INK)).encode(
        y=y, x="total:Q", text="text of total:N"
    )


def waterfall(steps: Sequence[tuple[str, int, bool]]) -> alt.LayerChart:
    """Draw steps (name, nano-dollars, is a sum). A sum starts at 0, any other step at the end of the previous step."""
    end, ranges = 0.0, []
    for name, nano, is_sum in steps:
        begin = 0.0 if is_sum else end
        end = begin + nano / 1e9
        kind = WHOLE if is_sum else MORE if nano > 0 else LESS
        text = ("+" if kind == MORE else "") + words.amount(nano)
        ends = {"from": begin, "to": end, "right": max(begin, end)}
        ranges.append({"name": name, "kind": kind, "text": text, **ends})
    frame = pl.DataFrame(ranges)
    y, base = _labels(frame, "name"), alt.Chart(frame, height=30 * frame.height + 90)
    scale = alt.Scale(domain=_from_zero([*frame["from"], *frame["to"]]))
    bars = base.mark_bar(size=16).encode(
        y=y,
        x=alt.X("from:Q", title="cost (USD)", scale=scale, axis=alt.Axis(tickCount=6)),
        x2="to:Q",
        color=_coloured("kind", _STEP_COLOURS, frame["kind"]),
        tooltip=["name:N", alt.Tooltip("text:N", title="amount")],
    )
    return bars + base.mark_text(align="left", dx=6, color=_themed(_INK)).encode(y=y, x="right:Q", text="text:N")


def shares(frame: pl.DataFrame, title: str) -> alt.LayerChart:
    """Draw shares with 95% intervals. Columns: place, share, low, high, name, text."""
    base = alt.Chart(frame, height=300)
    x = alt.X("place:Q", title=title, axis=alt.Axis(tickMinStep=1, format="d", grid=False))
    scale = alt.Scale(domain=[0, 1])
    y = alt.Y("share:Q", title="share of judged answers that were accepted", scale=scale, axis=alt.Axis(format="%"))
    tooltip = [alt.Tooltip("name:N", title=title), alt.Tooltip("text:N", title="accepted")]
    blue = _themed(_BLUE)
    few, low = frame.height <= _POINTS_MAX, alt.Y("low:Q", scale=scale)
    return (
        base.mark_area(color=blue, opacity=0.25).encode(x=x, y=low, y2="high:Q")
        + base.mark_rule(color=blue, opacity=0.45 if few else 0).encode(x=x, y=low, y2="high:Q")
        + base.mark_line(color=blue, strokeWidth=2).encode(x=x, y=y)
        + base.mark_point(color=blue, filled=True, size=45 if few else 12, opacity=1).encode(x=x, y=y, tooltip=tooltip)
    )


def lanes(
    begin: datetime, end: datetime, states: pl.DataFrame, leases: pl.DataFrame, preemptions: pl.DataFrame
) -> list[alt.Chart]:
    """Draw device states, leases and preemptions as lanes, from `begin` to `end` (UTC, without a time zone)."""

    def lane_chart(
        frame: pl.DataFrame, title: str, lane: str, start: str, tips: list[Any], **encoding: Any
    ) -> alt.Chart:
        height = max(_LANE_MIN_PX, _LANE_PX * frame[lane].n_unique()) + 190
        # Names stand above their lanes: a phone has no room beside the plot.
        inside = {"labelAlign": "left", "labelPadding": -2, "minExtent": 0, "maxExtent": 0, "zindex": 1}
        axis = alt.Axis(**inside, ticks=False, domain=False, labelOffset=-_LANE_PX // 2 + 1, labelLimit=400)
        y = alt.Y(f"{lane}:N", title=None, axis=axis, scale=alt.Scale(paddingInner=0.5, paddingOuter=0.5))
        chart = alt.Chart(frame, title=_title(title), height=height)
        return chart.encode(x=_between(start, begin, end), y=y, tooltip=tips, **encoding)

    shown = most_of_each_bin(states)
    names = ("lane", "t0", "t1", "state", "lent_share", *(f"{bucket}_share" for bucket in BUCKETS))
    tips = [alt.Tooltip("lane:N"), _time_tip("t0"), alt.Tooltip("state:N", title="most of it")]
    tips += [alt.Tooltip(f"{bucket}_share:Q", title=bucket, format=".1%") for bucket in BUCKETS]
    tips += [alt.Tooltip("lent_share:Q", title="lent", format=".1%")]
    colour = _coloured("state", BUCKET_COLOURS, shown["state"], columns=4)
    title = "Main activity of each device"
    charts = [lane_chart(shown.select(names), title, "lane", "t0", tips, x2="t1:T", color=colour).mark_rect(clip=True)]
    if not leases.is_empty():
        shown = leases.select("lease_id", "device_id", "granted_at", "until", "closed_by", "close_reason", "seconds")
        tips = ["lease_id:N", "closed_by:N", "close_reason:N", alt.Tooltip("seconds:Q", format=",.1f")]
        tips += [_time_tip("granted_at")]
        colour = _coloured("closed_by", _CLOSING_COLOURS, shown["closed_by"], columns=4)
        chart = lane_chart(shown, "Leases by ending", "device_id", "granted_at", tips, x2="until:T", color=colour)
        charts.append(chart.mark_bar(clip=True, height=10))
    if not preemptions.is_empty():
        tips = ["action:N", _time_tip("t"), "preemptions:Q", alt.Tooltip("waited_ms:Q", format=",.1f"), "tokens_lost:Q"]
        colour = _coloured("action", _PREEMPTION_COLOURS, preemptions["action"], columns=4)
        chart = lane_chart(preemptions, "Preemptions by serving", "action", "t", tips, color=colour)
        charts.append(chart.mark_tick(thickness=2, clip=True))
    return charts


def latency(frame: pl.DataFrame, name: str, begin: datetime, end: datetime, budget_ms: float | None) -> alt.LayerChart:
    """Draw `ttft` or `tpot`, with its budget. Columns: t, requests, {name}_p99_ms, {name}_p50_ms."""
    shown = frame.select("t", "requests", p99=f"{name}_p99_ms", p50=f"{name}_p50_ms")
    long = shown.unpivot(["p99", "p50"], index=["t", "requests"], variable_name="which", value_name="ms")
    tops = [float(str(top)) for top in (shown["p99"].max(), budget_ms) if top is not None]
    scale = alt.Scale(domain=[0, 1.2 * max(tops, default=1.0)])
    plain = alt.Chart(long).mark_line(
        point=alt.OverlayMarkDef(size=16), strokeWidth=1.6, clip=True, invalid="break-paths-show-path-domains"
    )
    lines = plain.encode(
        x=_between("t", begin, end),
        y=alt.Y("ms:Q", title="ms", axis=alt.Axis(tickCount=4), scale=scale),
        color=_coloured("which", _themed(_LINE_COLOURS), long["which"]),
        tooltip=[_time_tip("t"), "which:N", alt.Tooltip("ms:Q", format=",.1f"), "requests:Q"],
    )
    layers: list[Any] = [lines]
    if budget_ms is not None:
        budget = alt.Chart(pl.DataFrame({"ms": [budget_ms], "label": [f"budget {budget_ms:,.0f} ms"]}))
        layers.append(budget.mark_rule(color=_themed(_LIMIT), strokeDash=[8, 4], strokeWidth=1.5).encode(y="ms:Q"))
        at_the_end = budget.mark_text(color=_themed(_INK), align="right", dy=-6)
        layers.append(at_the_end.encode(x=alt.value("width"), y="ms:Q", text="label:N"))
    title = "Time to first token" if name == "ttft" else "Time per further token"
    return alt.layer(*layers, title=_title(title)).properties(height=260)


def most_of_each_bin(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the name of the largest bucket (`state`) and each bucket's share to each time bin. Leave out empty bins."""
    most, whole = pl.max_horizontal(BUCKETS), pl.sum_horizontal(BUCKETS)
    return frame.filter(whole > 0).with_columns(
        state=pl.coalesce(*(pl.when(pl.col(bucket) == most).then(pl.lit(bucket)) for bucket in BUCKETS)),
        **{f"{bucket}_share": pl.col(bucket) / whole for bucket in BUCKETS},
        lent_share=pl.col("lent") / whole,
    )


def _between(field: str, begin: datetime, end: datetime) -> alt.X:
    long = end - begin
    form = _DAY if long > timedelta(days=8) else f"%m-%d {_CLOCK}" if long > timedelta(days=1) else _CLOCK
    ends = [  # Vega shows times without a zone as they are: UTC stays UTC in any browser.
        alt.DateTime(year=at.year, month=at.month, date=at.day, hours=at.hour, minutes=at.minute, seconds=at.second)
        for at in (begin, end)
    ]
    return alt.X(
        f"{field}:T",
        title=None,
        scale=alt.Scale(domain=ends),
        axis=alt.Axis(format=form, labelOverlap=True, labelFlush=True, labelBound=True, grid=False),
    )


def _time_tip(field: str) -> alt.Tooltip:
    return alt.Tooltip(f"{field}:T", title="time (UTC)", format=f"{_DAY} {_CLOCK}")


def _title(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, anchor="start", fontSize=13, offset=4)
