"""One axis of time for everything that a fleet did: lanes, and a strip of the whole run to choose their time from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import altair as alt
import polars as pl

from dashboard import charts
from dashboard.charts import BORROWED, BUCKET_COLOURS, CLOSING_COLOURS, PREEMPTION_COLOURS
from rose.events import BUCKETS

#: Of lines, by whether the page is dark: both stand out from shaded time too.
LINES_COLOURS: Mapping[bool, Mapping[str, str]] = {
    False: {"p99": "#004C7A", "p50": "#0080C7"},
    True: {"p99": "#E3F3FD", "p50": "#7CC8F2"},
}
#: What is dragged over the strip, and the field that it is told of.
BRUSH, BRUSHED = "time", "t0"
#: Of an axis whose labels stand in the plot.
_INSIDE: Mapping[str, Any] = {
    "labelAlign": "left",
    "labelPadding": -2,
    "ticks": False,
    "domain": False,
    "minExtent": 0,
    "maxExtent": 0,
    "zindex": 1,
}
_LANE_PX, _LANE_MIN_PX = 30, 40
#: Streamlit gives each part the width of the page: whatever stands beside its plot would be cut off.
_WHOLE_WIDTH: Mapping[str, int] = {"left": 0, "right": 0, "top": 5, "bottom": 5}
#: With its title and its axis.
_STRIP_PX = 100
_CLOCK, _DAY = "%H:%M:%S", "%Y-%m-%d"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """What is drawn between two UTC times without a zone.

    `states`: lane, t0, t1, the buckets and `lent`, nanoseconds; `leases`: device_id, granted_at, until, closed_by, ...;
    `latency`: t, ttft_p50_ms, ...; NULL where a bin has no request; `preemptions`: action, t, preemptions, ...
    """

    begin: datetime
    end: datetime
    states: pl.DataFrame
    leases: pl.DataFrame
    latency: pl.DataFrame
    preemptions: pl.DataFrame
    #: Milliseconds; None where requests had different ones.
    ttft_budget_ms: float | None
    tpot_budget_ms: float | None

    def x(self, field: str) -> alt.X:
        """The axis that all lanes have."""
        return between(field, self.begin, self.end)


def shares(states: pl.DataFrame) -> pl.DataFrame:
    """How much of the serving devices' time was lent in each bin: t0, t1, share."""
    summed = (
        states.filter(pl.col("pool") == "serving")
        .group_by("bin")
        .agg(pl.col("t0").min(), pl.col("t1").max(), pl.col("lent").sum(), pl.sum_horizontal(BUCKETS).sum().alias("ns"))
    )
    return summed.filter(pl.col("ns") > 0).select("t0", "t1", share=pl.col("lent") / pl.col("ns")).sort("t0")


def strip(states: pl.DataFrame, begin: datetime, end: datetime, chosen: tuple[datetime, datetime] | None) -> alt.Chart:
    """How much was lent in a whole run; its selection is the time that is dragged over it, at first `chosen`."""
    marked = alt.Undefined if chosen is None else {"x": [_instant(at) for at in chosen]}
    brush = alt.selection_interval(encodings=["x"], name=BRUSH, value=marked)
    drawn = _shares(shares(states), between(BRUSHED, begin, end)).mark_rect(color=BORROWED).add_params(brush)
    named = title("Lent share of the whole run; drag to choose a time")
    return drawn.properties(height=_STRIP_PX, title=named, padding=_WHOLE_WIDTH)


def chart(lanes: Lanes) -> alt.VConcatChart:
    """The lanes, one above the other."""
    # The bin below the pointer, in whichever lane has bins: all lanes draw a line there.
    pointed = {name: _pointed(name) for name in ("states", "ttft", "tpot")}
    parts: list[alt.Chart | alt.LayerChart] = [_states(lanes).add_params(pointed["states"])]
    if not lanes.leases.is_empty():
        parts.append(_leases(lanes))
    for name, budget_ms in (("ttft", lanes.ttft_budget_ms), ("tpot", lanes.tpot_budget_ms)):
        if not lanes.latency.is_empty():
            parts.append(_latency(lanes, name, budget_ms, pointed[name]))
    if not lanes.preemptions.is_empty():
        parts.append(_preemptions(lanes))
    names = [one.name for name, one in pointed.items() if name == "states" or not lanes.latency.is_empty()]
    anywhere = alt.LogicalOrPredicate(**{"or": [alt.ParameterPredicate(param=name, empty=False) for name in names]})
    crossed = (_crossed(part, lanes, anywhere) for part in parts)
    drawn = alt.vconcat(*crossed, spacing=14, padding=_WHOLE_WIDTH)
    return drawn.resolve_scale(x="independent", color="independent", opacity="independent")


def _pointed(name: str) -> alt.Parameter:
    """What the pointer is on in one view."""
    return alt.selection_point(name=f"in_{name}", fields=["t0"], on="pointerover", clear="pointerout")


def _crossed(lane: alt.Chart | alt.LayerChart, lanes: Lanes, pointed: alt.LogicalOrPredicate) -> alt.LayerChart:
    """A lane with the line at what is pointed at, in this one or another."""
    bins = lanes.states.select("t0").unique().sort("t0")
    # Whoever has no pointer has nothing to read of it.
    drawn = alt.Chart(bins).mark_rule(color=charts.ink(), strokeWidth=1, clip=True, aria=False)
    line = drawn.encode(x=lanes.x("t0"))
    return alt.layer(lane, line.transform_filter(pointed))


def states(frame: pl.DataFrame) -> pl.DataFrame:
    """Each lane's bins with the bucket that took the most of it: `state`, and its `share`."""
    most = pl.max_horizontal(BUCKETS)
    whole = pl.sum_horizontal(BUCKETS)
    state = pl.coalesce(*(pl.when(pl.col(bucket) == most).then(pl.lit(bucket)) for bucket in BUCKETS))
    return frame.filter(whole > 0).with_columns(
        state=state,
        share=most / whole,
        **{f"{bucket}_share": pl.col(bucket) / whole for bucket in BUCKETS},
        lent_share=pl.col("lent") / whole,
    )


def _states(lanes: Lanes) -> alt.Chart:
    shown = states(lanes.states)
    colours = present(BUCKET_COLOURS, shown["state"])
    tips = [alt.Tooltip("lane:N"), time_tip("t0"), alt.Tooltip("state:N", title="most of it")]
    tips += [alt.Tooltip(f"{bucket}_share:Q", title=bucket, format=".1%") for bucket in BUCKETS]
    tips += [alt.Tooltip("lent_share:Q", title="lent", format=".1%")]
    names = ("lane", "t0", "t1", "state", "lent_share", *(f"{bucket}_share" for bucket in BUCKETS))
    height = _height(shown["lane"].n_unique())
    return (
        alt.Chart(shown.select(names), title=title("What each device did most"), height=height)
        .mark_rect(clip=True)
        .encode(
            x=lanes.x("t0"),
            x2="t1:T",
            y=_lane("lane"),
            tooltip=tips,
            color=_colour("state", colours),
        )
    )


def _leases(lanes: Lanes) -> alt.Chart:
    shown = lanes.leases.select(
        "lease_id", "device_id", "granted_at", "until", "closed_by", "close_reason", "seconds", "own_seconds"
    )
    tips = [
        "lease_id:N",
        "closed_by:N",
        "close_reason:N",
        alt.Tooltip("seconds:Q", format=",.1f"),
        alt.Tooltip("own_seconds:Q", format=",.1f"),
        time_tip("granted_at"),
    ]
    return (
        alt.Chart(shown, title=title("Leases, by how they ended"), height=_height(shown["device_id"].n_unique()))
        .mark_bar(clip=True, height=10)
        .encode(
            x=lanes.x("granted_at"),
            x2="until:T",
            y=_lane("device_id"),
            tooltip=tips,
            color=_colour("closed_by", present(CLOSING_COLOURS, shown["closed_by"])),
        )
    )


def _latency(lanes: Lanes, name: str, budget_ms: float | None, pointed: alt.Parameter) -> alt.LayerChart:
    """p99 and p50; a bin without a request is a gap. Behind them, how much of serving was lent; across, the budget."""
    shown = lanes.latency.select("t", "requests", p99=f"{name}_p99_ms", p50=f"{name}_p50_ms")
    long = shown.unpivot(["p99", "p50"], index=["t", "requests"], variable_name="which", value_name="ms")
    tops = [top for top in (shown["p99"].max(), budget_ms) if top is not None]
    ceiling = 1.2 * max(map(float, map(str, tops)), default=1.0)
    shade = _shares(shares(lanes.states), lanes.x("t0")).mark_rect(color=BORROWED, clip=True).add_params(pointed)
    # Two lanes have the same one, and what is pointed at is told by the name of the view.
    shade = shade.properties(name=f"{name}_shade")
    lines = (
        alt.Chart(long)
        .mark_line(
            point=alt.OverlayMarkDef(size=16), strokeWidth=1.6, clip=True, invalid="break-paths-show-path-domains"
        )
        .encode(
            x=lanes.x("t"),
            y=alt.Y(
                "ms:Q",
                title=None,
                axis=alt.Axis(**_INSIDE, labelBaseline="bottom", tickCount=4),
                scale=alt.Scale(domain=[0, ceiling]),
            ),
            color=_colour("which", LINES_COLOURS[charts.is_dark()]),
            tooltip=[time_tip("t"), "which:N", alt.Tooltip("ms:Q", format=",.1f"), "requests:Q"],
        )
    )
    layers: list[Any] = [shade, lines]
    if budget_ms is not None:
        budget = alt.Chart(pl.DataFrame({"ms": [budget_ms], "label": [f"budget {budget_ms:,.0f} ms"]}))
        layers.append(budget.mark_rule(color=charts.budget(), strokeDash=[8, 4], strokeWidth=1.5).encode(y="ms:Q"))
        at_the_end = budget.mark_text(color=charts.ink(), align="right", dy=-6).encode(
            x=alt.value("width"), y="ms:Q", text="label:N"
        )
        layers.append(at_the_end)
    words = "Time to first token" if name == "ttft" else "Time for each further token"
    named = title(f"{words} (ms); shaded where devices were lent")
    return alt.layer(*layers, title=named).properties(height=130).resolve_scale(color="independent")


def _preemptions(lanes: Lanes) -> alt.Chart:
    tips = ["action:N", time_tip("t"), "preemptions:Q", alt.Tooltip("waited_ms:Q", format=",.1f"), "tokens_lost:Q"]
    shown = lanes.preemptions
    colour = _colour("action", present(PREEMPTION_COLOURS, shown["action"]))
    return (
        alt.Chart(shown, title=title("What serving took back"), height=_height(shown["action"].n_unique()))
        .mark_tick(thickness=2, clip=True)
        .encode(
            x=lanes.x("t"),
            y=_lane("action"),
            tooltip=tips,
            color=colour,
        )
    )


def _shares(lent: pl.DataFrame, x: alt.X) -> alt.Chart:
    opacity = alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0, 0.45]), legend=None)
    tips = [time_tip("t0"), alt.Tooltip("share:Q", title="lent", format=".1%")]
    return alt.Chart(lent).mark_rect().encode(x=x, x2="t1:T", opacity=opacity, tooltip=tips)


def between(field: str, begin: datetime, end: datetime) -> alt.X:
    """An axis of time from one UTC time without a zone to another."""
    long = end - begin
    form = _DAY if long > timedelta(days=8) else f"%m-%d {_CLOCK}" if long > timedelta(days=1) else _CLOCK
    return alt.X(
        f"{field}:T",
        title=None,
        scale=alt.Scale(domain=[_instant(begin), _instant(end)]),
        axis=alt.Axis(format=form, labelOverlap=True, labelFlush=True, labelBound=True, grid=False),
    )


def _lane(field: str) -> alt.Y:
    """Lanes with their names above them, so that nothing stands beside the plot, on a phone either."""
    scale = alt.Scale(paddingInner=0.5, paddingOuter=0.5)
    axis = alt.Axis(**_INSIDE, labelOffset=-_LANE_PX // 2 + 1, labelLimit=400)
    return alt.Y(f"{field}:N", title=None, axis=axis, scale=scale)


def time_tip(field: str) -> alt.Tooltip:
    """A UTC time to the second."""
    return alt.Tooltip(f"{field}:T", title="time (UTC)", format=f"{_DAY} {_CLOCK}")


def _colour(field: str, colours: Mapping[str, str]) -> alt.Color:
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(
        f"{field}:N", scale=scale, legend=alt.Legend(title=None, orient="top", symbolType="square", columns=4)
    )


def present(colours: Mapping[str, str], values: pl.Series) -> dict[str, str]:
    """The colours of what there is, so that a legend has no more."""
    return {name: colour for name, colour in colours.items() if name in set(values)}


def title(text: str) -> alt.TitleParams:
    """Of one of several charts."""
    return alt.TitleParams(text, anchor="start", fontSize=13)


def _height(rows: int) -> int:
    return max(_LANE_MIN_PX, _LANE_PX * rows)


def _instant(at: datetime) -> alt.DateTime:
    """Times come without a zone, which Vega reads and shows as they are, so UTC stays UTC in any browser."""
    return alt.DateTime(year=at.year, month=at.month, date=at.day, hours=at.hour, minutes=at.minute, seconds=at.second)
