"""The books: what is closed and what was corrected, what teams may spend, and files to take."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import charts, data, display, escape, frame
from dashboard import format as words
from dashboard.data import Run, Scope
from rose.clock import utc
from rose.pricing import alerts
from rose.pricing.audit import check
from rose.pricing.closing import statement, store
from rose.pricing.closing import tables as closing_tables
from rose.pricing.closing.period import moment, month_at
from rose.pricing.closing.records import Posting
from rose.pricing.export import bill as exported
from rose.pricing.export import focus, markup, workbook
from rose.pricing.spend import cost
from rose.pricing.spend import tables as cost_tables
from rose.pricing.watch import tables as watch_tables
from rose.pricing.watch.budget import TeamBudget

_NOW = "now"
_BY = ("team", "bucket", "run", "device-class", "policy-version", "task", "fate", "cause", "day")
_BY_LOADED = ("team", "work", "run", "device-class", "policy-version", "task", "fate", "day")
_EXCEL = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_PARQUET = "application/vnd.apache.parquet"


def show(ledger: Path, runs: list[Run]) -> None:
    _closes(ledger)
    scope = frame.scope(ledger)
    if scope is not None:
        _open_period(scope)
        _month(replace(scope, period=month_at(scope.period.to_ns - 1)))
    _alerts(ledger)


def _closes(ledger: Path) -> None:
    st.header("What is closed?")
    posted = data.closes(ledger)
    if posted.value is None:
        frame.failed(posted)
        return
    if not posted.value:
        st.info("No period is closed yet. `rose books close --month YYYY-MM` closes one; it never changes after that.")
        return
    as_of_ns = _as_of(posted.value)
    known = {
        close_id: [entry for entry in entries if as_of_ns is None or entry.posted_ns <= as_of_ns]
        for close_id, entries in posted.value.items()
    }
    known = {close_id: entries for close_id, entries in known.items() if entries}
    source = "events of the ledger's writer `closing`; a close never changes, and what was found later is a correction"
    frame.elements(closing_tables.closes(known), source)
    _check(ledger)
    left, middle, right = st.columns(3)
    close_id = left.selectbox("Close", list(reversed(known)), key="books-close")
    texts = {view: view.replace("-", " ") for view in statement.VIEWS}
    view = middle.radio("View", list(texts), format_func=texts.__getitem__, horizontal=True, key="books-view")
    by = right.selectbox("Divided by", _BY if view == statement.VIEWS[0] else _BY_LOADED, key="books-by")
    stated = data.kept(
        lambda: statement.state(store.read(ledger, close_id, as_of_ns), (by,), view),
        ledger,
        "stated",
        close_id,
        by,
        view,
        as_of_ns,
        data.frozen(ledger),
        large=True,
    )
    if stated.value is None:
        frame.failed(stated)
        return
    close = stated.value.close
    frame.banner(close.stamp.provenance)
    frame.stamp(close.stamp)
    frame.elements(closing_tables.statement(stated.value), f"charges of {close_id} with its corrections")
    question = cost.Question(period=close.posted[0].period, by=("team",), close_id=close_id)
    _files(ledger, f"rose-{close_id}", lambda: exported.of_closed(ledger, close), lambda: cost.ask(ledger, question))


def _as_of(closes: Mapping[str, Sequence[Posting]]) -> int | None:
    """The instant that the books are shown as of; None: as they are now. Between two postings nothing changes."""
    posted = sorted((entry for entries in closes.values() for entry in entries), key=lambda entry: -entry.posted_us)
    names: dict[int | None, str] = {None: _NOW}
    for entry in posted:
        what = "close of" if entry.number == 0 else f"correction {entry.number} of"
        at = utc(entry.posted_ns)[:19].replace("T", " ")
        names.setdefault(entry.posted_ns, f"{at} UTC, after the {what} {entry.close_id}")
    return st.selectbox("As it was known", list(names), format_func=names.__getitem__, key="books-as-of")


def _check(ledger: Path) -> None:
    if not st.button("Check every frozen byte", help="What `rose books verify` does."):
        return
    with st.spinner("Comparing frozen files with the ledger …"):
        checked = data.attempt(lambda: check.check(ledger))
    if checked.value is None:
        frame.failed(checked)
    elif checked.value.problems:
        st.error("\n\n".join(escape.prose(problem) for problem in checked.value.problems))
    else:
        result = checked.value
        st.success(
            f"{result.closes} closes, {result.corrections} corrections, {result.files} files: the books are sound."
        )


def _files(ledger: Path, name: str, bill: Callable[[], exported.Bill], by_team: Callable[[], cost.Cost]) -> None:
    """A button for each kind of file; a file is made when it is taken."""

    def made(write: Callable[[Path], object], ending: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="rose-file-") as folder:
            path = Path(folder) / f"{name}{ending}"
            write(path)
            return path.read_bytes()

    def page(path: Path) -> object:
        answer = by_team()
        parts = cost_tables.page(answer)
        return markup.write(path, f"Cost by team, {name}", parts, totals={}, warnings=answer.stamp.warnings)

    kinds: tuple[tuple[str, str, str, Callable[[Path], object]], ...] = (
        ("Workbook", ".xlsx", _EXCEL, lambda path: workbook.write(bill(), path)),
        ("FOCUS, Parquet", "-focus.parquet", _PARQUET, lambda path: focus.write(bill(), path)),
        ("FOCUS, CSV", "-focus.csv", "text/csv", lambda path: focus.write(bill(), path)),
        ("Cost by team, HTML", ".html", "text/html", page),
    )
    for column, (label, ending, mime, write) in zip(st.columns(len(kinds)), kinds, strict=True):
        with column:
            frame.download_button(
                label,
                functools.partial(made, write, ending),
                f"{name}{ending}",
                mime,
                key=f"{name}{ending}",
                icon=":material/download:",
            )


def _open_period(scope: Scope) -> None:
    st.header(f"Take {words.period(scope.period)} with you")
    billed = frame.priced(
        scope.ledger, lambda unverified: data.bill(replace(scope, unverified=unverified)), "books-bill"
    )
    if billed is None:
        return
    frame.stamp(billed.stamp)
    if billed.closes:
        st.info(f"A part of this period is closed ({', '.join(billed.closes)}): take the files of the close, above.")
        return
    unverified = not billed.verified
    question = cost.Question(period=scope.period, by=("team",), provenance=scope.provenance)

    def bill() -> exported.Bill:
        return exported.of_period(
            scope.ledger,
            scope.book,
            from_ns=scope.period.from_ns,
            to_ns=scope.period.to_ns,
            provenance=scope.provenance,
            allow_unverified=unverified,
        )

    _files(
        scope.ledger,
        f"rose-{scope.provenance}-{scope.period.label}",
        bill,
        lambda: cost.ask(scope.ledger, question, scope.book, allow_unverified=unverified),
    )
    st.caption("Of the whole fleet. This period is open: its cost may still change.")


def _month(scope: Scope) -> None:
    label = scope.period.label
    st.header(f"Will {label} stay within its budgets?")
    budgets = frame.priced(
        scope.ledger, lambda unverified: data.budgets(replace(scope, unverified=unverified)), "books-budgets"
    )
    if budgets:
        display.chart(
            charts.budgets(_drawn(budgets), budgets[0].spent.stamp.currency), about="Budgets, spent and forecast"
        )
        frame.elements(watch_tables.budgets(budgets), "charges and budgets of the ledger")
    elif budgets is not None:
        st.info(f"No budget is set for {label}: `rose books budget set TEAM USD --month {label}` sets one.")


def _drawn(budgets: Sequence[TeamBudget]) -> pl.DataFrame:
    rows = [
        {
            "team": row.team,
            "text": f"{row.spent.text}, {row.forecast.short_text}, {row.budget.text}",
            "spent": (row.spent.value or 0) / 1e9,
            "budget": (row.budget.value or 0) / 1e9,
            "forecast": None if row.forecast.value is None else row.forecast.value / 1e9,
            "low": None if row.forecast.low is None else row.forecast.low / 1e9,
            "high": None if row.forecast.high is None else row.forecast.high / 1e9,
        }
        for row in budgets
    ]
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(("forecast", "low", "high"), pl.Float64))


def _alerts(ledger: Path) -> None:
    st.header("Which alerts hold?")
    entries = data.attempt(lambda: alerts.entries(ledger))
    if entries.value is None:
        frame.failed(entries)
    elif not entries.value:
        st.info("No alert holds by the last `rose alerts check`.")
    else:
        rows = [
            {"last message": moment(entry.at_us * 1000), "alert": entry.title, "to": entry.to, "error": entry.error}
            for entry in entries.value
        ]
        listed = pl.DataFrame(rows, schema_overrides={"error": pl.String})
        frame.table(listed, "the last `rose alerts check`", name="alerts")


frame.ledger_page(
    "Books",
    "What is closed, what was corrected since, will budgets hold, and which files can you take?",
    show,
    uses=("period", "provenance"),
)
