"""What the evidence on borrowing looks like: shares of late requests, what savings depend on, bursts, and spikes."""

from __future__ import annotations

import altair as alt
import polars as pl

from dashboard import timeline
from dashboard.charts import BORROWED, DEDICATED, ink

_ROW_PX = 34
_WORSE, _BETTER = "#AA4499", "#117733"


def late(frame: pl.DataFrame) -> alt.LayerChart:
    """Shares of late requests as points, with a 95% interval where there is one. Columns: name, share, low, high."""
    base = alt.Chart(frame, height=_ROW_PX * frame.height + 90)
    y = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=320))
    title = "requests that missed a latency budget"
    percent = alt.Axis(format="~%", tickCount=6)
    tips = ["name:N", *(alt.Tooltip(f"{field}:Q", format=".3~%") for field in ("share", "low", "high"))]
    x = alt.X("share:Q", title=title, axis=percent, scale=alt.Scale(domainMin=0))
    return (
        base.mark_rule(strokeWidth=4, color="#9fb3c8").encode(
            y=y, x=alt.X("low:Q", title=title, axis=percent), x2="high:Q"
        )
        + base.mark_point(filled=True, size=120, color="#0072B2", opacity=1).encode(y=y, x=x, tooltip=tips)
        + base.mark_text(align="left", dx=8, dy=-10, color=ink()).encode(
            y=y, x=x, text=alt.Text("share:Q", format=".2%")
        )
    )


def depends(frame: pl.DataFrame, now: float, currency: str) -> alt.LayerChart:
    """What cash saved would be at either end of each thing, the furthest moved at the top; a line where it is now.

    Columns: name, worse, better, worse_text, better_text.
    """
    named = frame.with_columns(now=pl.lit(now))
    base = alt.Chart(named, height=_ROW_PX * named.height + 120)
    y = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=260, labelOverlap=False))
    title = f"cash saved ({currency}), each moved alone over its own range"
    tips = [
        "name:N",
        alt.Tooltip("worse_text:N", title="at its worse end"),
        alt.Tooltip("better_text:N", title="at its better end"),
    ]
    line = alt.Chart(pl.DataFrame({"at": [now, 0.0], "what": ["as it is", "saves nothing"]}))
    dash = alt.StrokeDash(
        "what:N",
        legend=alt.Legend(title=None, orient="top"),
        scale=alt.Scale(domain=["as it is", "saves nothing"], range=[[1, 0], [6, 4]]),
    )
    return (
        base.mark_bar(color=_WORSE, height=18).encode(y=y, x=alt.X("worse:Q", title=title), x2="now:Q", tooltip=tips)
        + base.mark_bar(color=_BETTER, height=18).encode(
            y=y, x=alt.X("now:Q", title=title), x2="better:Q", tooltip=tips
        )
        + line.mark_rule(color=ink(), strokeWidth=1.5).encode(x="at:Q", strokeDash=dash)
    )


def bursts(frame: pl.DataFrame) -> alt.LayerChart:
    """How often a burst follows, by fifth of serving load, with 95%. Columns: load, an_hour, low, high, windows."""
    base = alt.Chart(frame, height=240).encode(
        x=alt.X("load:O", title="serving load", sort=None, axis=alt.Axis(labelAngle=0))
    )
    title = "bursts an hour"
    tips = ["load:O", *(alt.Tooltip(f"{field}:Q", format=".3~g") for field in ("an_hour", "low", "high")), "windows:Q"]
    return base.mark_bar(color="#0072B2", size=46).encode(y=alt.Y("an_hour:Q", title=title), tooltip=tips) + (
        base.mark_rule(strokeWidth=2, color=ink()).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    )


def coupled(frame: pl.DataFrame, dedicated: float | None, currency: str) -> alt.LayerChart:
    """Price of a million borrowed tokens by how load and demand rise together. Columns: r, usd, text. Simulated."""
    y = alt.Y("usd:Q", title=f"{currency} a million tokens", scale=alt.Scale(zero=True))
    base = alt.Chart(frame, height=260).encode(
        x=alt.X("r:Q", title="r, how closely load and demand rise together", axis=alt.Axis(format=".2~f")),
        y=y,
        tooltip=["r:Q", alt.Tooltip("text:N", title="a million borrowed tokens, simulated")],
    )
    layers = [
        base.mark_line(color=BORROWED, strokeDash=[4, 3], strokeWidth=2),
        base.mark_point(color=BORROWED, filled=True, size=60, opacity=1),
    ]
    if dedicated is not None:
        line = alt.Chart(pl.DataFrame({"usd": [dedicated], "label": ["on dedicated devices, as measured"]}))
        layers.append(line.mark_rule(color=DEDICATED, strokeWidth=2).encode(y="usd:Q"))
        layers.append(
            line.mark_text(color=ink(), align="left", dx=4, dy=-8).encode(y="usd:Q", x=alt.value(0), text="label:N")
        )
    return alt.layer(*layers, title=timeline.title("Simulated"))
