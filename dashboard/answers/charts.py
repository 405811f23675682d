"""The charts of the page Cost per correct."""

from __future__ import annotations

import json
import textwrap

import altair as alt
import polars as pl

from dashboard.charts import from_zero, ink

#: More points than these would run into each other.
_POINTS_MAX = 40
#: Labels are broken into lines of so many.
_LABEL_CHARACTERS = 30
_BLUE, _GREEN = "#0072B2", "#009E73"


def shares(frame: pl.DataFrame, title: str) -> alt.LayerChart:
    """A share with its 95% interval over steps or versions. Columns: place, share, low, high, named, text."""
    base = alt.Chart(frame, height=300)
    x = alt.X("place:Q", title=title, axis=alt.Axis(tickMinStep=1, format="d", grid=False))
    scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(format="%")
    y = alt.Y("share:Q", title="share of judged answers accepted", scale=scale, axis=axis)
    tooltip = [alt.Tooltip("named:N", title=title), alt.Tooltip("text:N", title="accepted")]
    few = frame.height <= _POINTS_MAX
    low = alt.Y("low:Q", scale=scale)
    return (
        base.mark_area(color=_BLUE, opacity=0.25).encode(x=x, y=low, y2="high:Q")
        + base.mark_rule(color=_BLUE, opacity=0.45 if few else 0).encode(x=x, y=low, y2="high:Q")
        + base.mark_line(color=_BLUE, strokeWidth=2).encode(x=x, y=y)
        + base.mark_point(color=_BLUE, filled=True, size=45 if few else 12, opacity=1).encode(x=x, y=y, tooltip=tooltip)
    )


def levers(frame: pl.DataFrame, title: str) -> alt.LayerChart:
    """What each lever saves, the most at the top. Columns: lever, saves, text."""
    base = alt.Chart(frame, height=38 * max(frame.height, 2) + 80)
    lines = {name: textwrap.wrap(name, _LABEL_CHARACTERS) for name in frame["lever"]}
    axis = alt.Axis(labelExpr=f"({json.dumps(lines)})[datum.label]", labelLimit=220)
    y = alt.Y("lever:N", title=None, sort=None, axis=axis)
    scale = alt.Scale(domain=from_zero(frame["saves"].to_list()))
    x = alt.X("saves:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))
    return base.mark_bar(color=_GREEN, size=18).encode(
        y=y, x=x, tooltip=["lever:N", alt.Tooltip("text:N", title="saves")]
    ) + base.mark_text(align="left", dx=6, color=ink()).encode(y=y, x=x, text="text:N")
