"""Shows ledger text as plain text. A name must not load a page, imitate a heading, or run as a formula."""

import re
from typing import Any

import altair as alt
import polars as pl
import streamlit as st

from rose.ledger.commands.output import FORMULA, csv_cells
from rose.terminal import visible, visible_lines

_SPECIAL = re.compile(r"[\\`*_\[\]<>$~#|&!]|:(?=[A-Za-z_+\-])")  #: Special in Markdown, HTML, LaTeX, or a `:name:`.
_LINE_START = re.compile(r"^(\s*)([-=+]|\d+(?=[.)]))", re.MULTILINE)  #: At a line's start: lists, rules, underlines.
#: Start of an address that Markdown links even when escaped; an invisible word joiner prevents it.
_ADDRESS = re.compile(r"(?<=:)(?=//)|(?i:(?<=www)(?=\.))|(?=@)")
_JOINER = "\u2060"
#: Code spans of our own sentences. A span has no dollar sign: `format.plain` would show a backslash in it.
_CODE = re.compile(r"(?<!`)`([^`$\\\n]+)`(?!`)")


def cell(text: str) -> str:
    """Remove the backticks around code in one of ROSE's own sentences."""
    return _CODE.sub(r"\1", text)


def markdown(text: str) -> str:
    """Escape `text` for Markdown. Line breaks stay. Control characters become visible."""
    return _LINE_START.sub(_inert, _SPECIAL.sub(r"\\\g<0>", _ADDRESS.sub(_JOINER, visible_lines(text))))


def prose(text: str) -> str:
    """Escape one of ROSE's own sentences. Its code spans stay code."""
    parts = _CODE.split(visible_lines(text))
    return "".join(f"`{part}`" if place % 2 else markdown(part) for place, part in enumerate(parts))


def _inert(start: re.Match[str]) -> str:
    space, mark = start.groups()
    return f"{space}{mark}{_JOINER}" if mark.isdigit() else f"{space}\\{mark}"


def table(rows: pl.DataFrame, **options: Any) -> None:
    """Show rows, with `options` of `st.dataframe`. Control characters become visible."""
    settings = {"hide_index": True, "width": "stretch", "placeholder": "", **options}
    st.dataframe(_cells(rows).rename(visible), **settings)


def static(rows: pl.DataFrame) -> None:
    """Show a table whose cells are ROSE's own sentences. Long cells wrap."""
    texts = rows.with_columns(pl.all().map_elements(prose, return_dtype=pl.String).fill_null(""))
    st.table(texts.rename(prose), hide_index=True)


def chart(figure: alt.TopLevelMixin, about: str) -> None:
    """Show a chart. Screen readers get the text `about`. Control characters become visible."""
    _escape(figure)
    st.altair_chart(figure, width="stretch", alt=visible(about))


def _escape(figure: Any) -> None:
    if isinstance(figure.data, pl.DataFrame):
        figure.data = _cells(figure.data)
    for name in ("layer", "hconcat", "vconcat"):
        parts = getattr(figure, name, None)
        for part in parts if isinstance(parts, list) else ():
            _escape(part)


def _cells(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col(pl.String).map_elements(visible, return_dtype=pl.String))


def csv(frame: pl.DataFrame) -> str:
    """Return rows as CSV. Text that looks like a formula gets an apostrophe before it."""
    rows = frame.with_columns(pl.col(pl.String).str.replace(f"({FORMULA.pattern})", "'$1"))
    return rows.rename(dict(zip(frame.columns, csv_cells(frame.columns), strict=True))).write_csv()
