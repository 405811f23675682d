"""The chart of a query's rows: by columns that the reader chooses, else by those that their types suggest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl
from polars import selectors

from dashboard.link import Link

#: So many rows are drawn, the first; more could not be told apart.
ROWS_MAX = 2_000
_COLOUR = "#0072B2"
_TITLE_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What is drawn: `kind` is one of link.CHARTS, and `x` and `y` are columns unless it is `none`."""

    kind: str
    x: str | None = None
    y: str | None = None


def axes(rows: pl.DataFrame) -> tuple[Sequence[str], Sequence[str]]:
    """The columns that can be x, all of them, and those that can be y, numbers."""
    return rows.columns, rows.select(selectors.numeric()).columns


def chosen(rows: pl.DataFrame, link: Link) -> Drawn:
    """What to draw; whatever the link does not say, or says of a column that is not there, by the types.

    x is a time, else text, else the first column; y the first number beside it that is not always the same; a time or a
    number has a line.
    """
    every, numbers = axes(rows)
    if link.chart == "none" or not numbers:
        return Drawn(kind="none")
    y_asked = link.y if link.y in numbers else None
    left = [name for name in every if name != y_asked]
    suggested = [*rows.select(selectors.temporal()).columns, *rows.select(selectors.string()).columns, *every]
    suggested = [name for name in suggested if name in left] or [*every]
    x = link.x if link.x is not None and link.x in every else suggested[0]
    beside = [name for name in numbers if name != x] or numbers
    y = y_asked or next((name for name in beside if rows[name].n_unique() > 1), beside[0])
    ordered = rows.schema[x].is_temporal() or rows.schema[x].is_numeric()
    return Drawn(kind=link.chart or ("line" if ordered else "bar"), x=x, y=y)


def chart(rows: pl.DataFrame, drawn: Drawn) -> alt.Chart:
    """The first ROWS_MAX rows as a line or bars."""
    assert drawn.x is not None
    assert drawn.y is not None
    # Under names of ours: in those of a query, points and brackets would be paths to Vega.
    x, y = rows[drawn.x].rename("x").head(ROWS_MAX), rows[drawn.y].rename("y").head(ROWS_MAX)
    kind = "T" if x.dtype.is_temporal() else "Q" if x.dtype.is_numeric() and drawn.kind == "line" else "N"
    # Times come without a zone, which Vega shows as they are.
    times = {"format": "%Y-%m-%d" if x.dtype == pl.Date else "%m-%d %H:%M"} if kind == "T" else {}
    titles = {name: column[:_TITLE_CHARACTERS] for name, column in (("x", drawn.x), ("y", drawn.y))}
    text = x.cast(pl.String).fill_null("unknown").rename("text")
    base = alt.Chart(pl.DataFrame([x, y, text]), height=320)
    marked = (
        base.mark_line(color=_COLOUR, point=len(x) <= 100) if drawn.kind == "line" else base.mark_bar(color=_COLOUR)
    )
    return marked.encode(
        # In the order of the rows, which the query chose.
        x=alt.X(f"x:{kind}", title=titles["x"], sort=None, axis=alt.Axis(labelLimit=160, labelOverlap=True, **times)),
        y=alt.Y("y:Q", title=titles["y"]),
        tooltip=[alt.Tooltip("text:N", title=titles["x"]), alt.Tooltip("y:Q", title=titles["y"], format=",")],
    )
