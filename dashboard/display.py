"""Tables and charts whose cells and labels are text: a name's control and direction characters are escaped."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl
import streamlit as st

from rose.terminal import visible


def table(rows: pl.DataFrame, **options: Any) -> Any:
    """Show rows as Streamlit's `dataframe` does, with its `options`; return what it returns."""
    settings = {"hide_index": True, "width": "stretch", "placeholder": "", **options}
    return st.dataframe(_values(rows).rename(visible), **settings)


def chart(drawn: alt.TopLevelMixin, *, about: str, **options: Any) -> Any:
    """Show a chart as Streamlit's `altair_chart` does, `about` for readers of screens; return what it returns."""
    _escape(drawn)
    return st.altair_chart(drawn, width="stretch", alt=visible(about), **options)


def _values(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col(pl.String).map_elements(visible, return_dtype=pl.String))


def _escape(drawn: Any) -> None:
    """Escape the text in the rows of a chart and of the charts in it."""
    if isinstance(drawn.data, pl.DataFrame):
        drawn.data = _values(drawn.data)
    for name in ("layer", "hconcat", "vconcat"):
        parts = getattr(drawn, name, None)
        for part in parts if isinstance(parts, list) else ():
            _escape(part)
