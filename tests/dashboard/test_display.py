from __future__ import annotations

import json
from typing import Any

from streamlit.testing.v1 import AppTest


def test_cells_and_labels_are_text_and_other_text_stays_as_it_is() -> None:
    def page() -> None:
        import altair as alt
        import polars as pl

        from dashboard import display

        rows = pl.DataFrame({"team\u200f": ["a\u202egnp", "ünï 文字", None], "cost": [1.0, 2.0, 3.0]})
        display.table(rows)
        base = alt.Chart(rows.rename({"team\u200f": "team"})).encode(x="team:N", y="cost:Q")
        labels = alt.Chart(pl.DataFrame({"label": ["b\u202egnp"]})).mark_text().encode(text="label:N")
        display.chart(alt.vconcat(base.mark_bar() + labels, base.mark_line()), about="by team\u200f")

    app: Any = AppTest.from_function(page).run()
    assert not app.exception
    (table,) = app.dataframe
    assert {name: [*cells][:2] for name, cells in table.value.items()} == {
        r"team\u200f": [r"a\u202egnp", "ünï 文字"],
        "cost": [1.0, 2.0],
    }
    (chart,) = app.get("vega_lite_chart")
    rows = b"".join(data.data.data for data in chart.proto.datasets)
    for text in (rb"a\u202egnp", rb"b\u202egnp", "ünï 文字".encode()):
        assert text in rows
    assert "\u202e".encode() not in rows
    assert "\u202e" not in json.dumps(json.loads(chart.proto.spec), ensure_ascii=False)
