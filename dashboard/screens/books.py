"""Closes, corrections, bills of teams, forecasts, budgets, alerts and files."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import bar, data, escape, frame, link
from dashboard import format as words
from dashboard.data import Run, Scope
from rose.clock import utc
from rose.ledger.ledger import Ledger
from rose.pricing import alerts
from rose.pricing.closing import store
from rose.pricing.closing.bill import Bill, of_close
from rose.pricing.closing.store import Posting
from rose.pricing.export import focus, out, workbook
from rose.pricing.period import moment, month_at
from rose.pricing.spend import cost
from rose.pricing.spend import spend_tables as cost_tables
from rose.pricing.watch import budget

_NOW = "now"
_BY = ("team", "bucket", "run", "device-class", "version", "task", "fate", "cause", "day")
_EXCEL = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_PARQUET = "application/vnd.apache.parquet"


def show(ledger: Ledger, runs: list[Run]) -> None:
    with frame.errors_shown():
        _closes(ledger)
    with frame.errors_shown():
        scope = frame.scope(ledger)
        if scope is not None:
            with frame.errors_shown():
                _period(scope)
            with frame.errors_shown():
                _month(replace(scope, period=month_at(scope.period.to_ns - 1)))
    _alerts(ledger)


def _closes(ledger: Ledger) -> None:
    st.header("What is closed?")
    posted = data.closes(ledger)
    if not posted:
        st.info("No period is closed yet. `rose books close --period YYYY-MM` closes one for good.")
        return
    as_of_ns = _as_of(posted)
    visible = {
        close_id: [entry for entry in entries if as_of_ns is None or entry.posted_ns <= as_of_ns]
        for close_id, entries in posted.items()
        if as_of_ns is None or entries[0].posted_ns <= as_of_ns
    }
    source = "events of the ledger's writer `closing`; a close never changes; what is found later becomes a correction"
    frame.elements(store.closes_table(visible), source)
    left, middle, right = st.columns(3)
    close_id = left.selectbox("Close", list(reversed(visible)), key="books-close")
    texts = {view: view.replace("-", " ") for view in cost.VIEWS}
    view = middle.radio("View", list(texts), format_func=texts.__getitem__, horizontal=True, key="books-view")
    by = right.selectbox("Divided by", _BY if view == link.AMORTIZED else (*_BY, "work"), key="books-by")
    first = visible[close_id][0]
    question = cost.Question(
        period=first.period, by=(by,), view=view, provenance=first.provenance, close_id=close_id, as_of_ns=as_of_ns
    )
    answer = data.kept(lambda: cost.ask(ledger, question), ledger, "close", question, data.frozen(ledger))
    frame.banner(first.provenance)
    frame.stamp(answer.stamp)
    frame.elements(store.posting_elements(visible[close_id]), f"events of {close_id}")
    frame.elements(cost_tables.terminal(answer), f"charges of {close_id} with its corrections")
    by_team = replace(question, by=("team",), view=link.AMORTIZED)
    _files(
        f"rose-{close_id}",
        lambda: of_close(ledger, close_id, as_of_ns),
        lambda: cost.ask(ledger, by_team),
        "Cost by team",
    )


def _as_of(closes: Mapping[str, Sequence[Posting]]) -> int | None:
    posted = sorted((entry for entries in closes.values() for entry in entries), key=lambda entry: -entry.posted_us)
    names: dict[int | None, str] = {None: _NOW}
    for entry in posted:
        what = "close of" if entry.number == 0 else f"correction {entry.number} of"
        at = utc(entry.posted_ns)[:19].replace("T", " ")
        names.setdefault(entry.posted_ns, f"{at} UTC, after the {what} {entry.close_id}")
    return st.selectbox("As it was known", list(names), format_func=names.__getitem__, key="books-as-of")


def _files(name: str, bill: Callable[[], Bill], answer: Callable[[], cost.Cost], what: str) -> None:
    def file_of(write: Callable[[Bill, Path], object], ending: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="rose-file-") as folder:
            path = Path(folder) / f"{name}{ending}"
            write(bill(), path)
            return path.read_bytes()

    def page() -> bytes:
        cost_by = answer()
        return out.page(f"{what}, {name}", cost_tables.page(cost_by), cost_by.stamp.warnings).encode()

    kinds: tuple[tuple[str, str, str, Callable[[], bytes]], ...] = (
        ("Workbook, Excel", ".xlsx", _EXCEL, lambda: file_of(workbook.write, ".xlsx")),
        ("FOCUS, Parquet", "-focus.parquet", _PARQUET, lambda: file_of(focus.write, "-focus.parquet")),
        ("FOCUS, CSV", "-focus.csv", "text/csv", lambda: file_of(focus.write, "-focus.csv")),
        (f"{what}, HTML", ".html", "text/html", page),
    )
    for column, (label, ending, mime, make) in zip(st.columns(len(kinds)), kinds, strict=True):
        with column:
            file = f"{name}{ending}"
            frame.download_button(escape.markdown(label), make, file, mime, key=file, icon=":material/download:")


def _period(scope: Scope) -> None:
    team, when = bar.chosen().team, words.period(scope.period)
    what = "Cost by team" if team is None else f"Bill of {team}"
    st.header(escape.markdown(f"{what}, {when}"))
    billed = data.bill(scope)
    frame.stamp(billed.stamp)
    only, by = ({}, ("team",)) if team is None else ({"team": team}, ("run", "bucket"))
    question = cost.Question(period=scope.period, by=by, only=only, provenance=scope.provenance)
    answer = data.kept(lambda: cost.ask(scope.ledger, question, scope.book), scope.ledger, question, *scope.key)
    frame.elements(cost_tables.terminal(answer), "charges of the ledger")
    st.caption("All device time is charged here, serving included. The page Cost shows rollouts only.")
    if team is not None:
        st.markdown(f"The last file has only {escape.markdown(team)}; the others have the whole fleet.")
    _files(f"rose-{scope.provenance}-{scope.period.label}", lambda: billed, lambda: answer, what)
    closed = f"Closed: {', '.join(billed.closes)}. " if billed.closes else ""
    still_open = "The cost of open hours may still change." if billed.open else ""
    st.caption(closed + still_open)


def _month(scope: Scope) -> None:
    label = scope.period.label
    st.header(f"What will {label} cost?")
    frame.elements(budget.forecast_tables(data.expected(scope)), "charges of the ledger", titles=False)
    st.subheader("Will it stay within its budgets?")
    budgets = data.budgets(scope)
    if budgets:
        frame.elements(budget.budget_tables(budgets), "charges and budgets of the ledger")
    else:
        st.info(f"No budget is set for {label}: `rose books budget TEAM USD --month {label}` sets one.")


def _alerts(ledger: Ledger) -> None:
    st.header("Which alerts are active?")
    entries = alerts.entries(ledger)
    if not entries:
        st.info("No active alert is recorded. Only `rose alerts` checks for alerts.")
        return
    rows = [
        {"last message": moment(entry.at_us * 1000), "alert": entry.title, "to": entry.to, "error": entry.error}
        for entry in entries
    ]
    frame.table(pl.DataFrame(rows, schema_overrides={"error": pl.String}), "the last `rose alerts`", name="alerts")


frame.ledger_page(
    "Books",
    "What is closed, what is each team's bill, what will the month cost, and which files can you take?",
    show,
    uses=("period", "team", "provenance"),
)
