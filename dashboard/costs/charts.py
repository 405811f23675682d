"""The charts of the page Cost."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from dashboard.charts import BORROWED as BORROWED_COLOUR
from dashboard.charts import BUCKET_COLOURS, coloured, from_zero, ink
from dashboard.charts import DEDICATED as DEDICATED_COLOUR
from dashboard.costs.groups import BORROWED, DEDICATED, TRANSFER
from rose.text import visible

PLACE_COLOURS: Mapping[str, str] = {
    BORROWED: BORROWED_COLOUR,
    DEDICATED: DEDICATED_COLOUR,
    TRANSFER: BUCKET_COLOURS["transfer"],
}


def ranked(frame: pl.DataFrame, currency: str) -> alt.LayerChart:
    """Bars in the order of the rows, divided by where the rollouts were made. Columns: name, place, cost, text, total,
    text of total."""
    order = frame["name"].unique(maintain_order=True).to_list()
    frame = frame.filter(pl.col("nano-dollars") != 0)
    present = {place: colour for place, colour in PLACE_COLOURS.items() if place in set(frame["place"])}
    base = alt.Chart(frame, height=30 * len(order) + 110)
    y = alt.Y("name:N", title=None, sort=[*map(visible, order)], axis=alt.Axis(labelLimit=220))
    scale = alt.Scale(domain=from_zero(frame["total"].to_list()))
    bars = base.mark_bar().encode(
        y=y,
        x=alt.X("cost:Q", title=f"cost ({currency})", scale=scale, axis=alt.Axis(tickCount=6)),
        color=coloured("place", present, columns=1),
        order=alt.Order("place:N"),
        tooltip=["name:N", "place:N", alt.Tooltip("text:N", title="cost"), alt.Tooltip("nano-dollars:Q", format=",")],
    )
    ends = alt.Chart(frame.unique("name", maintain_order=True))
    texts = ends.mark_text(align="left", dx=6, color=ink()).encode(y=y, x="total:Q", text="text of total:N")
    return bars + texts
