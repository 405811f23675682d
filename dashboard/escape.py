"""Text from a ledger as text: in Markdown, where it could become a formula, a link or an image; and in CSV.

Anybody who may write an event may write a run's name. What is shown of it must not load a page of theirs, look like
a heading of ours, or run in a spreadsheet.
"""

from __future__ import annotations

import io
import re
from csv import writer

import polars as pl

from rose.ledger.commands.output import FORMULA, csv_cells
from rose.terminal import visible_lines

#: Characters that begin or end something in Markdown, HTML, LaTeX, and a `:name:` of Streamlit's.
_SPECIAL = re.compile(r"[\\`*_\[\]<>$~#|&!]|:(?=[A-Za-z_+\-])")
#: At the beginning of a line: lists, rules, and the underlines that make a heading of the line above.
_LINE_START = re.compile(r"^(\s*)([-=+]|\d+(?=[.)]))", re.MULTILINE)
#: Where an address begins that Markdown makes a link of by itself, escaped or not; a word joiner there is not seen.
_ADDRESS = re.compile(r"(?<=:)(?=//)|(?i:(?<=www)(?=\.))|(?=@)")
_JOINER = "\u2060"
#: What a sentence of ours sets as code. A dollar sign ends none: what is escaped after this would show its backslash.
_CODE = re.compile(r"(?<!`)`([^`$\\\n]+)`(?!`)")


def cell(text: str) -> str:
    """A sentence of ours for a cell of a table, which has no code."""
    return _CODE.sub(r"\1", text)


def markdown(text: str) -> str:
    """`text` for Markdown that says what it says. Line ends stay; control characters are written out."""
    joined = _ADDRESS.sub(_JOINER, visible_lines(text))
    escaped = _SPECIAL.sub(r"\\\g<0>", joined)
    return _LINE_START.sub(
        lambda start: f"{start[1]}\\{start[2]}" if not start[2].isdigit() else _number(start), escaped
    )


def prose(text: str) -> str:
    """A sentence of ours, such as an error's, for Markdown: its code spans are code, all else is as by `markdown`.

    A name in it may have backticks too: what stands in a code span is text all the same.
    """
    parts = _CODE.split(visible_lines(text))
    return "".join(f"`{part}`" if place % 2 else markdown(part) for place, part in enumerate(parts))


def _number(start: re.Match[str]) -> str:
    """A number at the beginning of a line, which a point or a bracket after it would make a list of."""
    return f"{start[1]}{start[2]}{_JOINER}"


def csv(frame: pl.DataFrame) -> str:
    """The rows as CSV; text that a spreadsheet would take for a formula has an apostrophe before it."""
    rows = frame.with_columns(pl.col(pl.String).str.replace(f"({FORMULA.pattern})", "'$1"))
    head = io.StringIO()
    writer(head, lineterminator="\n").writerow(csv_cells(frame.columns))
    return head.getvalue() + rows.write_csv(include_header=False)
