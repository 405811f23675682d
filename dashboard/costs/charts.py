"""The charts of the page Cost."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from dashboard.charts import BORROWED as BORROWED_COLOUR
from dashboard.charts import BUCKET_COLOURS, _colour, _from_zero, _ink
from dashboard.charts import DEDICATED as DEDICATED_COLOUR
from dashboard.costs.groups import BORROWED, DEDICATED, TRANSFER

PLACE_COLOURS: Mapping[str, str] = {
    BORROWED: BORROWED_COLOUR, DEDICATED: DEDICATED_COLOUR, TRANSFER: BUCKET_COLOURS["transfer"],
}  # fmt: skip
WHOLE, MORE, LESS, UNKNOWN = "sum so far", "costs more", "costs less", "not known"
_STEP_COLOURS: Mapping[str, str] = {WHOLE: "#5B6B7A", MORE: "#D55E00", LESS: "#009E73"}


def ranked(frame: pl.DataFrame, currency: str) -> alt.LayerChart:
    """Bars in the order of the rows, divided by where the rollouts were made. Columns: name, place, cost, text, total,
    text of total."""
    order = frame["name"].unique(maintain_order=True).to_list()
    frame = frame.filter(pl.col("nano-dollars") != 0)
    present = {place: colour for place, colour in PLACE_COLOURS.items() if place in set(frame["place"])}
    base = alt.Chart(frame, height=30 * len(order) + 110)
    y = alt.Y("name:N", title=None, sort=order, axis=alt.Axis(labelLimit=220))
    scale = alt.Scale(domain=_from_zero(frame["total"].to_list()))
    bars = base.mark_bar().encode(
        y=y,
        x=alt.X("cost:Q", title=f"cost ({currency})", scale=scale, axis=alt.Axis(tickCount=6)),
        color=_colour("place", present),
        order=alt.Order("place:N"),
        tooltip=["name:N", "place:N", alt.Tooltip("text:N", title="cost"), alt.Tooltip("nano-dollars:Q", format=",")],
    )
    ends = alt.Chart(frame.unique("name", maintain_order=True))
    texts = ends.mark_text(align="left", dx=6, color=_ink()).encode(y=y, x="total:Q", text="text of total:N")
    return bars + texts


def waterfall(frame: pl.DataFrame, title: str) -> alt.LayerChart:
    """Steps below each other, each from where the one before it ended. Columns: name, from, to, kind, text, why; a step
    that is not known has its place, and no bar."""
    y = alt.Y("name:N", title=None, sort=frame["name"].to_list(), axis=alt.Axis(labelLimit=260))
    ends = [*frame["from"], *frame["to"]]
    base = alt.Chart(frame, height=28 * frame.height + 80)
    x = alt.X("from:Q", title=title, scale=alt.Scale(domain=_from_zero(ends)), axis=alt.Axis(tickCount=6))
    bars = base.transform_filter(f"datum.kind != '{UNKNOWN}'").mark_bar(size=16).encode(
        y=y, x=x, x2="to:Q", color=_colour("kind", _STEP_COLOURS),
        tooltip=["name:N", alt.Tooltip("text:N", title="amount"), alt.Tooltip("why:N")],
    )  # fmt: skip
    texts = base.mark_text(align="left", dx=6, color=_ink()).encode(y=y, x="right:Q", text="text:N")
    return bars + texts
