"""Named queries and a SELECT of the reader's own, on the ledger as it is: rows, a chart of them, and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import parse_qsl

import polars as pl
import streamlit as st

from dashboard import bar, data, display, escape, frame, queries, query_chart
from dashboard import format as words
from dashboard.access import session
from dashboard.data import Priced, Run
from dashboard.link import CHARTS, OWN, SQL_MAX, Link
from dashboard.queries import Asked, Rows, Running
from rose.errors import UserError
from rose.ledger.reading import dictionary, named
from rose.ledger.reading.named import Variable
from rose.pricing.closing import store
from rose.text import visible

_RUNNING, _ANSWER, _OFFERED = "sql-running", "sql-answer", "sql-offered"
_QUERY, _TEXT, _LIST, _CHART = "sql-query", "sql-text", "sql-list", "sql-chart"
#: A query that takes no longer is waited for; of others it is said how long they take, so often.
_PATIENCE_S, _EVERY_S = 2.0, 1.0
_OWN_WORDS = "a SELECT of your own"
_EXAMPLE = "SELECT kind, count(*) AS events FROM event GROUP BY kind ORDER BY events DESC"
_WRITTEN: Mapping[str, str] = {
    "TIMESTAMP": "24h, 7d or 2026-11-01",
    "BIGINT": "a whole number",
}


def show(ledger: Path, runs: list[Run]) -> None:
    chosen = bar.chosen()
    # A text alone is one of the reader's own.
    query = OWN if chosen.query is None and chosen.sql is not None else chosen.query
    st.session_state[_QUERY] = query
    options = [None, OWN, *named.names()]
    if query not in options:
        options.append(query)
    st.selectbox(
        "Query",
        options,
        key=_QUERY,
        on_change=_choose,
        placeholder="choose one",
        format_func=lambda name: _OWN_WORDS if name == OWN else "the list of them" if name is None else name,
    )
    match query:
        case None:
            _list()
        case str() if query == OWN:
            _own(ledger, chosen, runs)
        case str(name):
            _named(ledger, name, chosen, runs)
    _schema(ledger)


def _choose(name: str | None = None) -> None:
    """Another query: what was set for the last one is not for this one."""
    name = name or st.session_state[_QUERY]
    bar.pick(query=name, variables=None, sql=None, chart=None, x=None, y=None)


def _list() -> None:
    listed = [named.load(name) for name in named.names()]
    rows = [{"query": query.name, "question": query.question} for query in listed]
    display.table(
        pl.DataFrame(rows),
        height=420,
        key=_LIST,
        on_select=_picked,
        selection_mode="single-row",
        column_config={"query": st.column_config.TextColumn(width="medium")},
    )
    st.caption(
        f"{len(listed)} queries that are kept with ROSE, and run as `rose query NAME` runs them. A row opens one."
    )


def _picked() -> None:
    if rows := st.session_state[_LIST]["selection"]["rows"]:
        _choose(named.names()[rows[0]])


def _named(ledger: Path, name: str, chosen: Link, runs: list[Run]) -> None:
    try:
        query = named.load(name)
    except UserError as error:
        st.error(escape.prose(str(error)))
        return
    st.markdown(escape.markdown(query.question))
    given = dict(parse_qsl(chosen.variables or "", keep_blank_values=True))
    # Another link makes other inputs, with its values; what somebody is writing in these stays.
    inputs = {variable.name: f"sql-{name}-{variable.name}-{chosen.variables}" for variable in query.variables}
    with st.form(f"sql-form-{name}", border=True):
        for place, variable in zip(_places(len(query.variables)), query.variables, strict=True):
            with place:
                _input(variable, given.get(variable.name, ""), inputs[variable.name], runs)
        st.form_submit_button("Run", on_click=_set, args=(inputs,), type="primary")
    with st.expander("How to read it, and its text"):
        st.markdown(escape.markdown(query.reading))
        st.code(query.text, language="sql")
    asked = queries.of_link(chosen)
    if asked is not None:
        # What a link asks for is one of our own texts: it runs without a click.
        _answer(ledger, asked, runs, begin=True)


def _places(count: int) -> list[st.delta_generator.DeltaGenerator]:
    return [place for _ in range(0, count, 4) for place in st.columns(4)][:count]


def _input(variable: Variable, text: str, key: str, runs: list[Run]) -> None:
    about = escape.markdown(f"{variable.about} ({variable.type})")
    if variable.name == "run_id":
        options = list(dict.fromkeys([*([text] if text else []), *(run.run_id for run in runs)]))
        st.selectbox(
            "run_id",
            options,
            0 if text else None,
            key=key,
            help=about,
            placeholder="every run",
            accept_new_options=True,
            format_func=visible,
        )
    elif variable.type == "BIGINT" and (not text or text.lstrip("-").isdigit()):
        value = int(text) if text else None
        st.number_input(variable.name, value=value, step=1, format="%d", key=key, help=about, placeholder="any")
    else:
        placeholder = _WRITTEN.get(variable.type, "any")
        st.text_input(variable.name, text, key=key, help=about, placeholder=placeholder)


def _set(inputs: Mapping[str, str]) -> None:
    """What the form has is what the link has from now on; the same again is run again."""
    values = {name: st.session_state.get(key) for name, key in inputs.items()}
    bar.pick(
        variables=queries.written({name: str(value).strip() for name, value in values.items() if value is not None})
    )
    st.session_state.pop(_ANSWER, None)


def _own(ledger: Path, chosen: Link, runs: list[Run]) -> None:
    if chosen.sql is not None and (_TEXT not in st.session_state or st.session_state.get(_OFFERED) != chosen.sql):
        st.session_state[_TEXT] = st.session_state[_OFFERED] = chosen.sql
    st.session_state.setdefault(_TEXT, _EXAMPLE)
    st.text_area(
        "One SELECT over the ledger's views",
        key=_TEXT,
        height=180,
        max_chars=100_000,
        help="WITH, FROM, DESCRIBE and SUMMARIZE count as SELECT. Nothing else of the machine can be read.",
    )
    text = str(st.session_state[_TEXT])
    clicked = st.button("Run", type="primary", key="sql-run", on_click=_offer)
    if len(text) > SQL_MAX:
        st.caption(f"Text of more than {SQL_MAX:,} characters is not in the address: a link to this page lacks it.")
    st.caption(
        f"At most {queries.ROWS_MAX:,} rows, {queries.SECONDS_MAX} s and 2 GB of memory, read only, as `rose sql`. "
        "Text that came with a link is run by nothing but the button."
    )
    _answer(ledger, Asked(name=OWN, text=text), runs, begin=clicked)


def _offer() -> None:
    text = str(st.session_state[_TEXT])
    kept = text if len(text) <= SQL_MAX and text.strip() else None
    st.session_state[_OFFERED] = kept
    st.session_state.pop(_ANSWER, None)
    bar.pick(sql=kept)


def _answer(ledger: Path, asked: Asked, runs: list[Run], *, begin: bool) -> None:
    """The rows of what is asked, once they are there; `begin`: it may be run now."""
    running = cast(Running | None, st.session_state.get(_RUNNING))
    if running is not None and running.asked != asked and (begin or running.asked.name != asked.name):
        running.cancel()
        running = st.session_state[_RUNNING] = None
    known = cast(tuple[Asked, Priced[Rows]] | None, st.session_state.get(_ANSWER))
    if running is None and begin and (known is None or known[0] != asked):
        running = _begin(ledger, asked)
        known = None
    if running is not None:
        with st.spinner("Running …"):
            running.done.wait(max(0.0, _PATIENCE_S - running.seconds))
        if not running.done.is_set():
            _follow()
            return
        known = st.session_state[_ANSWER] = running.asked, running.answer
        st.session_state[_RUNNING] = None
    if known is None or known[0].name != asked.name:
        return
    if known[0] != asked:
        st.caption("The text was changed since: the rows below are of what was run.")
    if known[1].value is None:
        st.error(escape.prose(known[1].error or ""))
    else:
        _rows(known[1].value, known[0], runs)


def _begin(ledger: Path, asked: Asked) -> Running | None:
    text = asked.text or " ".join((asked.name, *(f"{name}={value}" for name, value in asked.variables)))
    try:
        running = Running(ledger, asked, session.noted("query", text))
    except (UserError, OSError) as error:
        st.session_state[_ANSWER] = asked, Priced(None, str(error))
        return None
    st.session_state[_RUNNING] = running
    return running


@st.fragment(run_every=_EVERY_S)
def _follow() -> None:
    """How long it takes already, and a way to end it."""
    running = cast(Running | None, st.session_state.get(_RUNNING))
    if running is None or running.done.is_set():
        st.rerun()
    st.progress(
        min(1.0, running.seconds / queries.SECONDS_MAX),
        f"Running for {running.seconds:.0f} s; it is ended after {queries.SECONDS_MAX} s.",
    )
    st.button("Cancel", key="sql-cancel", on_click=running.cancel)


def _rows(rows: Rows, asked: Asked, runs: list[Run]) -> None:
    table = queries.shown(rows.frame)
    if rows.truncated:
        st.warning(
            f"There are more than {queries.ROWS_MAX:,} rows: the first {queries.ROWS_MAX:,} are shown, drawn and "
            "downloaded. Narrow the query, or let it add up."
        )
    display.table(table)
    st.caption(f"{table.height:,} rows in {rows.seconds:.1f} s, at {words.when(rows.at)}. Times are UTC.")
    if table.height and _one_provenance(table, runs):
        _drawn(table)
    name = "rose-query" if asked.name == OWN else f"rose-{asked.name.replace('_', '-')}"
    left, right, _ = st.columns([1, 1, 3])
    with left:
        session.download_button("Rows as CSV", lambda: escape.csv(rows.frame), f"{name}.csv", "text/csv", key="sql-csv")
    with right:
        session.download_button(
            "Rows as Parquet",
            lambda: store.parquet(rows.frame),
            f"{name}.parquet",
            "application/vnd.apache.parquet",
            key="sql-parquet",
        )


def _one_provenance(table: pl.DataFrame, runs: list[Run]) -> bool:
    """Whether the rows may be drawn together; says what they are of."""
    if table.schema.get("provenance") == pl.String:
        present = table["provenance"].drop_nulls().unique().sort().to_list()
        if len(present) > 1:
            st.warning(f"The rows are {escape.markdown(' and '.join(present))}: no chart is made of both.")
            return False
    else:
        present = sorted({provenance for run in runs for provenance in run.provenances})
        if len(present) > 1:
            mix = " and ".join(present)
            st.warning(f"This ledger holds {mix} runs, and the rows do not say which they are of: select `provenance`.")
            return True
    for one in present:
        frame.banner(escape.markdown(one))
    return True


def _drawn(table: pl.DataFrame) -> None:
    every, numbers = query_chart.axes(table)
    if not numbers:
        st.caption("No column has numbers, so there is no chart.")
        return
    drawn = query_chart.chosen(table, bar.chosen())
    for name, value in (("chart", drawn.kind), ("x", drawn.x), ("y", drawn.y)):
        st.session_state[f"{_CHART}-{name}"] = value
    kind, x, y = st.columns(3)
    with kind:
        _axis("chart", "Chart", CHARTS)
    if drawn.kind == "none":
        return
    with x:
        _axis("x", "Along", every)
    with y:
        _axis("y", "Upwards", numbers)
    display.chart(query_chart.chart(table, drawn), about=f"{drawn.y} by {drawn.x}")
    if table.height > query_chart.ROWS_MAX:
        st.caption(f"The chart is of the first {query_chart.ROWS_MAX:,} of {table.height:,} rows.")
    if table[str(drawn.x)].is_duplicated().any():
        how = "their bars are stacked" if drawn.kind == "bar" else "the line goes through all of them"
        st.caption(f"Several rows have the same {escape.markdown(str(drawn.x))}: {how}.")


def _axis(name: str, label: str, options: Sequence[str]) -> None:
    key = f"{_CHART}-{name}"
    st.selectbox(label, options, key=key, on_change=lambda: bar.pick(**{name: st.session_state[key]}))


def _schema(ledger: Path) -> None:
    with st.expander("What there is to ask: views and columns"):
        described = data.kept(lambda: dictionary.read(ledger), ledger, "schema")
        if described.value is None:
            st.error(escape.prose(described.error or ""))
            return
        views = described.value
        name = st.selectbox("View", [view.name for view in views], key="sql-view")
        st.markdown(escape.markdown(dictionary.one(views, name).about))
        display.table(queries.one_view(views, name))


frame.ledger_page(
    "SQL", "What does the ledger itself say? Queries that are kept with ROSE, and a SELECT of your own.", show, uses=()
)
