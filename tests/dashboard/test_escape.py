import csv
import io
import json
import re
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from dashboard import escape
from rose.terminal import visible
from tests.dashboard.conftest import unescaped

#: What would be an image, a link, a formula, a heading, HTML, a colour or an icon.
HOSTILE = (
    "![x](http://evil.example/p.png)",
    "[x](javascript:alert(1))",
    "$\\frac{1}{2}$",
    "# heading",
    "a\n===",
    "<b>x</b>",
    ":red[x]",
    ":material/home:",
    ":smile:",
    "`code`",
    "https://evil.example",
    "www.evil.example",
    "me@evil.example",
    "| a | b |",
    "- a",
    "1. a",
    "~~a~~",
    "&lt;",
    "<img src=http://evil.example>",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_character_of_a_ledger_means_anything_to_markdown(text: str) -> None:
    escaped = escape.markdown(text)
    assert unescaped(escaped) == text
    for special in "\\`*_[]<>$~#|&!":
        assert not re.search(rf"(?<!\\)(?:\\\\)*{re.escape(special)}", escaped.replace("\\\\", "")) or special == "\\"
    assert "://" not in escaped
    assert not re.search(r"www\.|\w@|(?<!\\):[a-z]|(?m:^\s*(?:[-=+]|\d+[.)]))", escaped)


@given(st.text())
def test_text_is_shown_as_it_is(text: str) -> None:
    shown = "".join(character for character in text if visible(character) == character)
    assert unescaped(escape.markdown(shown)) == shown


@pytest.mark.parametrize("text", HOSTILE)
def test_a_sentence_shows_its_code_and_nothing_else_means_anything(text: str) -> None:
    rest = f" in [lending] for {text.replace('`', '')}"
    assert escape.prose(f"set `idle_anyway`{rest}") == f"set `idle_anyway`{escape.markdown(rest)}"
    # Whatever stands in a code span is text, and one that cannot be told for sure is none.
    assert escape.prose("`![x](http://evil.example)`") == "`![x](http://evil.example)`"
    for unclear in ("a ` b", "``a`", "`a``", "`$1`", "`a\\`", "`a\nb`"):
        assert escape.prose(unclear) == escape.markdown(unclear)


def test_no_text_is_a_formula_in_a_spreadsheet() -> None:
    frame = pl.DataFrame({"team": ["=HYPERLINK(1)", "+1", "-1", "@a", "\t=1", "a=1"], "cost": [-1.5, 0.0, 1, 2, 3, 4]})
    rows = list(csv.reader(io.StringIO(escape.csv(frame))))[1:]
    assert [row[0] for row in rows] == ["'=HYPERLINK(1)", "'+1", "'-1", "'@a", "'\t=1", "a=1"]
    assert rows[0][1] == "-1.5"


def test_times_amounts_and_cells_stay_readable() -> None:
    assert escape.markdown("2026-06-01 09:30:00 cost $1.20") == "2026-06-01 09:30:00 cost \\$1.20"
    assert escape.cell("state one, `violation_usd`, in [lending]") == "state one, violation_usd, in [lending]"


def test_cells_and_labels_are_text_and_other_text_stays_as_it_is() -> None:
    def page() -> None:
        import altair as alt
        import polars as pl

        from dashboard import escape

        rows = pl.DataFrame({"team\u200f": ["a\u202egnp", "ünï 文字", None], "cost": [1.0, 2.0, 3.0]})
        escape.table(rows)
        base = alt.Chart(rows.rename({"team\u200f": "team"})).encode(x="team:N", y="cost:Q")
        labels = alt.Chart(pl.DataFrame({"label": ["b\u202egnp"]})).mark_text().encode(text="label:N")
        escape.chart(alt.vconcat(base.mark_bar() + labels, base.mark_line()), about="by team\u200f")

    app: Any = AppTest.from_function(page).run()
    assert not app.exception
    (table,) = app.dataframe
    cells = {name: [*column][:2] for name, column in table.value.items()}
    assert cells == {r"team\u200f": [r"a\u202egnp", "ünï 文字"], "cost": [1.0, 2.0]}
    (chart,) = app.get("vega_lite_chart")
    rows = b"".join(data.data.data for data in chart.proto.datasets)
    for text in (rb"a\u202egnp", rb"b\u202egnp", "ünï 文字".encode()):
        assert text in rows
    assert "\u202e".encode() not in rows
    assert "\u202e" not in json.dumps(json.loads(chart.proto.spec), ensure_ascii=False)
