from __future__ import annotations

import csv
import io
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dashboard import escape, queries, query_chart
from dashboard.link import OWN, Link
from dashboard.queries import Asked, BusyError, Running
from rose.errors import UserError
from rose.ledger.reading import named
from rose.ledger.reading.query import Cancel, Result

WAIT_S = 60
LONG = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"


def own(ledger: Path, text: str) -> Result:
    return queries.run(ledger, Asked(name=OWN, text=text), None, Cancel())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ATTACH '/tmp/x.db'", "ATTACH statement was given. Allowed is exactly one SELECT"),
        ("COPY lease TO '/tmp/x.csv'", "COPY statement"),
        ("SELECT * FROM read_csv('/etc/passwd')", "'read_csv' is not allowed"),
        ("FROM '/etc/passwd'", "is not a view of the ledger"),
        ("FROM 'https://evil.example/x.parquet'", "is not a view of the ledger"),
        ("PRAGMA database_list", "Allowed is exactly one SELECT"),
        ("INSTALL httpfs", "LOAD statement"),
        ("SELECT 1; DROP VIEW lease", "2 statements"),
        ("SELECT getenv('HOME')", "'getenv' is not allowed"),
        ("SELECT repeat('x', 3000000000)", "Out of Memory|Cannot create a string|too"),
        ("", "0 statements"),
    ],
)
def test_what_is_no_select_on_the_ledger_is_refused(ended: Path, text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        own(ended, text)


@pytest.mark.parametrize(
    "text", [LONG, "WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT 1 FROM r) SELECT count(*) FROM r"]
)
def test_what_has_no_end_is_ended(ended: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(queries, "SECONDS_MAX", 1)
    with pytest.raises(UserError, match=r"took longer than 1 s|Out of Memory"):
        own(ended, text)


def test_a_billion_rows_are_cut_and_that_is_said(ended: Path) -> None:
    result = own(ended, "FROM range(1000000000)")
    assert (len(result.rows), result.truncated) == (queries.ROWS_MAX, True)


@pytest.mark.parametrize("asked", [Asked(name=OWN, text=LONG), Asked(name="slow")])
def test_a_query_that_runs_is_cancelled(ended: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = named.NamedQuery("slow", "", (), "", LONG)
    monkeypatch.setattr(named, "load", lambda name: slow)
    running = Running(ended, asked, None)
    time.sleep(0.3)
    running.cancel()
    assert running.done.wait(WAIT_S)
    assert running.answer.error == "the query was cancelled"


def test_no_more_run_at_a_time_than_there_is_memory_for(ended: Path) -> None:
    running = [Running(ended, Asked(name=OWN, text=LONG), None) for _ in range(queries.RUNNING_MAX)]
    with pytest.raises(BusyError, match="4 queries run already"):
        Running(ended, Asked(name=OWN, text="SELECT 1"), None)
    for one in running:
        one.cancel()
    assert all(one.done.wait(WAIT_S) for one in running)


def test_a_named_query_names_the_parameter_and_the_value(ended: Path) -> None:
    for variables, told in (
        ((("since", "soon"),), "since 'soon' is not a date"),
        ((("run_id", "nope"),), "no run with run_id 'nope'"),
        ((("turn", "x"),), "turn 'x' is not a whole number"),
        ((("color", "red"),), "reads no variable 'color'"),
    ):
        with pytest.raises(UserError, match=told):
            queries.run(ended, Asked(name="placement_of_turn", variables=variables), None, Cancel())


def test_columns_are_what_they_sort_as(ended: Path) -> None:
    text = (
        "SELECT sum(seq) AS s, 1.50::DECIMAL(5, 2) AS d, DATE '2026-06-01' AS day, TIMESTAMP '2026-06-01 05:00' AS at, "
        '[1, 2] AS l, 170141183460469231731687303715884105727::HUGEINT AS h, NULL AS n, 0.5::FLOAT AS "=f" FROM event'
    )
    rows = queries.frame(own(ended, text))
    types = [pl.Int64, pl.Decimal(5, 2), pl.Date, pl.Datetime("us"), pl.String, pl.String, pl.String, pl.Float64]
    assert rows.dtypes[:6] == types[:6]
    assert rows.dtypes[7] == types[7]
    assert rows.row(0)[1:5] == (Decimal("1.50"), date(2026, 6, 1), datetime(2026, 6, 1, 5), "[1, 2]")
    assert rows["n"].to_list() == [None]
    assert queries.shown(rows)["d"].to_list() == [1.5]
    assert next(csv.reader(io.StringIO(escape.csv(rows))))[-1] == "'=f"
    assert queries.frame(own(ended, "SELECT 1 AS a, 'x' AS b WHERE false")).schema == {"a": pl.Int64, "b": pl.String}


def test_a_chart_is_of_what_is_asked_for_or_of_what_the_types_suggest() -> None:
    rows = pl.DataFrame(
        {"n": [1, 1], "name": ["a", "b"], "at": [datetime(2026, 6, 1, tzinfo=UTC)] * 2, "cost": [1.0, 2.0]}
    )
    assert query_chart.chosen(rows, Link()) == query_chart.Drawn(kind="line", x="at", y="cost")
    assert query_chart.chosen(rows.drop("at"), Link()) == query_chart.Drawn(kind="bar", x="name", y="cost")
    asked = Link(chart="line", x="name", y="n")
    assert query_chart.chosen(rows, asked) == query_chart.Drawn(kind="line", x="name", y="n")
    gone = Link(x="no", y="name")
    assert query_chart.chosen(rows, gone) == query_chart.Drawn(kind="line", x="at", y="cost")
    assert query_chart.chosen(rows.select("name"), Link(chart="bar")).kind == "none"
    assert query_chart.chosen(rows.select("n"), Link()) == query_chart.Drawn(kind="line", x="n", y="n")
    odd = pl.DataFrame({"a.b[0]": ["x"], "c:Q": [1]})
    made = query_chart.chart(odd, query_chart.chosen(odd, Link())).to_dict()
    assert (made["encoding"]["x"]["field"], made["encoding"]["x"]["title"]) == ("x", "a.b[0]")


def answered(app: Any) -> Any:
    """The page once its query is over, however slow the host."""
    deadline = time.monotonic() + WAIT_S
    while any(button.label == "Cancel" for button in app.button) and time.monotonic() < deadline:
        app = app.run()
    assert not app.exception
    return app


@pytest.mark.long
def test_a_named_query_of_a_link_is_run_with_its_variables(ended: Path, open_page: Any, page_text: Any) -> None:
    app = answered(open_page(ended, "sql", query="leases_by_close_reason", variables="run_id=run"))
    assert not app.error
    assert set(app.dataframe[0].value["run_id"]) == {"run"}
    assert any("SIMULATED" in warning.value for warning in app.warning)
    assert len(app.get("vega_lite_chart")) == 1
    assert [button.label for button in app.get("download_button")] == ["Rows as CSV", "Rows as Parquet"]
    (device,) = [field for field in app.text_input if field.label == "device_id"]
    device.set_value("r9")
    (button,) = [button for button in app.button if button.label == "Run"]
    app = answered(button.click().run())
    assert "no device with device_id 'r9'" in page_text(app)
    assert "device_id=r9" in "".join(app.query_params["variables"])


@pytest.mark.long
def test_a_select_of_a_link_waits_for_a_click(ended: Path, open_page: Any, page_text: Any) -> None:
    app = open_page(ended, "sql", query=OWN, sql="SELECT count(*) AS events FROM event")
    assert not app.exception
    assert app.text_area[0].value == "SELECT count(*) AS events FROM event"
    assert "rows in" not in page_text(app)
    (button,) = [button for button in app.button if button.label == "Run"]
    app = answered(button.click().run())
    assert "1 rows in" in page_text(app)
    assert any("SIMULATED" in warning.value for warning in app.warning)
    assert list(app.dataframe[0].value.columns) == ["events"]
    app.text_area[0].set_value("COPY lease TO '/tmp/x'").run()
    (button,) = [button for button in app.button if button.label == "Run"]
    app = answered(button.click().run())
    assert "a COPY statement was given" in page_text(app)
    assert "".join(app.query_params["sql"]) == "COPY lease TO '/tmp/x'"
