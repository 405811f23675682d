"""The books: what is closed and what was corrected, what teams may spend, days that stand out, and alerts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st

from dashboard import amounts, books, charts, display, escape, files, frame
from dashboard import format as words
from dashboard.books import AMORTIZED, FULLY_LOADED, Asked
from dashboard.data import Run
from rose.clock import utc
from rose.pricing.closing.period import moment, month_at
from rose.pricing.closing.records import Posting
from rose.pricing.closing.statement import Statement
from rose.pricing.export import bill as exported
from rose.pricing.figures import Figure
from rose.pricing.money import NS_PER_HOUR, USD, signed_usd
from rose.pricing.watch import tables
from rose.pricing.watch.anomaly import RULE
from rose.pricing.watch.budget import TeamBudget

_NOW = "now"
#: How whole nano-dollars are written.
_NANO: dict[str, Any] = {"nano-dollars": st.column_config.NumberColumn(format="localized")}
_BY = {
    AMORTIZED: ("team", "bucket", "run", "device-class", "policy-version", "task", "fate", "cause", "day"),
    FULLY_LOADED: ("team", "work", "run", "device-class", "policy-version", "task", "fate", "day"),
}


def show(ledger: Path, runs: list[Run]) -> None:
    _closes(ledger)
    asked = frame.in_period(ledger)
    if asked is not None:
        _month(asked)
    _alerts(ledger)


def _month(asked: Asked) -> None:
    month = month_at(asked.period.to_ns - 1)
    st.markdown(f"Budgets and days below are of **{month.label}**, the month in which the period of the bar ends.")
    frame.banner(asked.provenance)
    asked = replace(asked, period=month)
    _budgets(asked)
    _anomalies(asked, datetime.now(UTC))


def _alerts(ledger: Path) -> None:
    st.header("Which alerts hold?")
    holding = books.alerting(ledger)
    if holding.value is None:
        st.error(escape.prose(holding.error or words.NOT_ENOUGH_DATA))
    elif not holding.value:
        st.info("No alert holds by the last `rose alerts`.")
    else:
        rows = [
            {"last message": moment(entry.at_us * 1000), "alert": entry.title, "to": entry.to, "error": entry.error}
            for entry in holding.value
        ]
        frame.table(pl.DataFrame(rows, schema_overrides={"error": pl.String}), "alerts.json in the ledger's folder")


def _closes(ledger: Path) -> None:
    st.header("What is closed?")
    posted = books.closes(ledger)
    if posted.value is None:
        st.error(escape.prose(posted.error or words.NOT_ENOUGH_DATA))
        return
    if not posted.value:
        st.info("No period is closed yet. `rose books close --month YYYY-MM` closes one; it never changes after that.")
        return
    as_of_ns = _as_of(posted.value)
    known = _known(posted.value, as_of_ns)
    postings = _postings(known)
    frame.table(
        postings,
        "events of the ledger, writer `closing`; amortized. A close never changes: what was found out later is a "
        "correction of its own. Verified: whether the ledger's hash chain held at every posting.",
        _money(postings, "closed", "corrected", "total") | _NANO,
    )
    _check(ledger)
    left, middle, right = st.columns(3)
    close_id = left.selectbox("Close", list(reversed(known)), key="books-close")
    view = middle.radio(
        "View",
        (AMORTIZED, FULLY_LOADED),
        format_func=lambda option: option.replace("-", " "),
        horizontal=True,
        key="books-view",
    )
    by = right.selectbox("Divided by", _BY[view], format_func=lambda option: option.replace("-", " "), key="books-by")
    stated = books.stated(ledger, close_id, (by,), view, as_of_ns)
    if stated.value is None:
        st.error(escape.prose(stated.error or words.NOT_ENOUGH_DATA))
        return
    _statement(stated.value)
    close = stated.value.close
    files.offer(f"{close_id}-{len(close.posted)}", f"rose-{close_id}", lambda: exported.of_closed(ledger, close))


def _money(table: pl.DataFrame, *names: str) -> dict[str, Any]:
    """How columns of dollars are written."""
    return {name: amounts.column(name, table[name], USD) for name in names}


def _usd(figure: Figure) -> float | None:
    return None if figure.value is None else figure.value / 1e9


def _as_of(closes: Mapping[str, Sequence[Posting]]) -> int | None:
    """The instant that the books are shown as of; None: as they are now. Between two postings nothing changes."""
    posted = sorted((entry for entries in closes.values() for entry in entries), key=lambda entry: -entry.posted_us)
    named: dict[int | None, str] = {None: _NOW}
    for entry in posted:
        what = "close of" if entry.number == 0 else f"correction {entry.number} of"
        named.setdefault(
            entry.posted_ns, f"{utc(entry.posted_ns)[:19].replace('T', ' ')} UTC, after the {what} {entry.close_id}"
        )
    return st.selectbox("As it was known", list(named), format_func=named.__getitem__, key="books-as-of")


def _known(closes: Mapping[str, Sequence[Posting]], as_of_ns: int | None) -> dict[str, list[Posting]]:
    """What was posted up to an instant."""
    known = {
        close_id: [entry for entry in entries if as_of_ns is None or entry.posted_ns <= as_of_ns]
        for close_id, entries in closes.items()
    }
    return {close_id: entries for close_id, entries in known.items() if entries}


def _postings(known: Mapping[str, Sequence[Posting]]) -> pl.DataFrame:
    rows = []
    for close_id, (first, *later) in known.items():
        corrected = sum(posting.cost_nano for posting in later)
        rows.append(
            {
                "close": close_id,
                "period": first.period.label,
                "provenance": first.provenance,
                "verified": "yes" if all(posting.verified for posting in (first, *later)) else "UNVERIFIED",
                "closed": first.cost_nano / 1e9,
                "corrections": len(later),
                "corrected": corrected / 1e9,
                "total": (first.cost_nano + corrected) / 1e9,
                "nano-dollars": first.cost_nano + corrected,
                "closed_at": utc(first.posted_ns)[:19].replace("T", " "),
                "by": first.posted_by,
                "price book": words.book(first.book),
            }
        )
    return pl.DataFrame(rows)


def _check(ledger: Path) -> None:
    if not st.button("Check every frozen byte", help="What `rose books verify` does."):
        return
    with st.spinner("Comparing frozen files with the ledger …"):
        checked = books.checked(ledger)
    if checked.value is None:
        st.error(escape.prose(checked.error or words.NOT_ENOUGH_DATA))
    elif checked.value.problems:
        st.error("\n\n".join(escape.prose(problem) for problem in checked.value.problems))
    else:
        result = checked.value
        st.success(
            f"{result.closes} closes, {result.corrections} corrections, {result.files} files: the books are sound."
        )


def _statement(statement: Statement) -> None:
    stamp, first = statement.close.stamp, statement.close.posted[0]
    frame.banner(stamp.provenance)
    frame.stamp(stamp)
    frame.metrics(
        ("As it was closed", statement.closed, f"By {first.posted_by}, {utc(first.posted_ns)[:19]}Z."),
        ("Corrections since", statement.corrections, f"{len(statement.close.posted) - 1}, each with its reason."),
        ("As it is known", statement.total, "Closed and corrections together."),
    )
    if len(statement.close.posted) > 1:
        rows = [
            {
                "no": posting.number,
                "posted": utc(posting.posted_ns)[:19].replace("T", " "),
                "amount": posting.cost_nano / 1e9,
                "rows": posting.rows,
                "why": posting.reason or "",
                "by": posting.posted_by,
                "verified": "yes" if posting.verified else "UNVERIFIED",
            }
            for posting in statement.close.posted[1:]
        ]
        posted = pl.DataFrame(rows)
        frame.table(posted, f"corrections of {statement.close.close_id}, amortized, {stamp}", _money(posted, "amount"))
    lines = [
        dict(zip(statement.by, line.values, strict=True))
        | {"cost": _usd(line.cost), "share": line.share.value, "nano-dollars": line.cost.value}
        | ({"device-hours": None if line.time.value is None else line.time.value / NS_PER_HOUR} if line.time else {})
        for line in statement.lines
    ]
    total = {
        statement.by[0]: "sum",
        "cost": _usd(statement.total),
        "share": 1.0,
        "nano-dollars": statement.total.value,
    }
    made = pl.DataFrame([*lines, total], schema_overrides={"share": pl.Float64}, infer_schema_length=None)
    hours = {"device-hours": amounts.hours(made["device-hours"])} if "device-hours" in made.columns else {}
    frame.table(
        made,
        f"charges of {statement.close.close_id} with its corrections, {statement.total.view}, {stamp}. In "
        f"nano-dollars: closed "
        f"{statement.closed.value:,} + corrections {statement.corrections.value:,} = {statement.total.value:,}, "
        f"the sum of the rows.",
        _money(made, "cost") | _NANO | {"share": st.column_config.NumberColumn(format="percent")} | hours,
    )


def _budgets(asked: Asked) -> None:
    st.header("Will the month stay within its budgets?")
    budgets = frame.asked(
        asked.ledger, lambda unverified: books.budgets(replace(asked, unverified=unverified)), "books-budgets"
    )
    if budgets is None:
        return
    if not budgets:
        st.info(
            f"No budget is set for {asked.period.label}. "
            f"`rose books budget TEAM USD --month {asked.period.label}` sets one."
        )
        return
    stamp = budgets[0].spent.stamp
    display.chart(charts.budgets(_chart(budgets), stamp.currency), about="Budgets, spent and forecast")
    for made in tables.budgets(budgets):
        frame.show_table(made, "charges and budgets of the ledger")


def _chart(budgets: Sequence[TeamBudget]) -> pl.DataFrame:
    rows = [
        {"team": budget.team, "text": f"{budget.spent.text}, {words.short(budget.forecast)}, {budget.budget.text}"}
        | {
            name: None if nano is None else nano / 1e9
            for name, nano in (
                ("spent", budget.spent.value),
                ("budget", budget.budget.value),
                ("forecast", budget.forecast.value),
                ("low", budget.forecast.low),
                ("high", budget.forecast.high),
            )
        }
        for budget in budgets
    ]
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(("forecast", "low", "high"), pl.Float64))


def _anomalies(asked: Asked, now: datetime) -> None:
    st.header("Which days stand out?")
    over = books.over(asked.period, now)
    if over is None:
        st.info("No day of this month is over yet.")
        return
    if not books.provenances(asked.ledger, over):
        st.info(f"No run lies in the days of {asked.period.label} that are over.")
        return
    watch = frame.asked(
        asked.ledger, lambda unverified: books.watched(replace(asked, period=over, unverified=unverified)), "books-days"
    )
    if watch is None:
        return
    if watch.not_judged:
        st.info(
            f"Not enough data for {len(watch.not_judged)} of the {len(watch.not_judged) + len(watch.judged)} days with "
            "charges: too few charged days come before them."
        )
    if watch.judged and not watch.anomalies:
        st.markdown(f"None of the {len(watch.judged)} days that could be judged.")
    for anomaly in watch.anomalies:
        compared = f"from {anomaly.median.text} on {anomaly.compared_with}"
        said = escape.markdown(f"{signed_usd(anomaly.change_nano)} {compared}.")
        head = escape.markdown(f"{anomaly.day}: {anomaly.metric} {anomaly.value.text}")
        st.markdown(f"**{head}**, {said}")
    if watch.anomalies:
        rows = [
            {
                "day": str(anomaly.day),
                "what": anomaly.metric,
                "value": _usd(anomaly.value),
                "unit": words.unit(anomaly.value),
                "median": _usd(anomaly.median),
                "change": anomaly.change_nano / 1e9,
                "deviations": None if anomaly.deviations is None else round(anomaly.deviations, 1),
            }
            for anomaly in watch.anomalies
        ]
        listed = pl.DataFrame(rows, infer_schema_length=None)
        money = (name for name in listed.columns if name not in ("day", "what", "unit", "deviations"))
        source = f"charges, amortized, {watch.stamp}."
        frame.table(listed, source, _money(listed, *money))
    st.caption(f"Of the whole fleet, whichever team is chosen. {RULE[0].upper()}{RULE[1:]}. {watch.stamp}.")


frame.ledger_page(
    "Books",
    "What is closed, what was corrected since, and is anything out of line?",
    show,
    uses=("period", "provenance"),
)
