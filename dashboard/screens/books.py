"""The books, read only: what is closed and what was corrected, what teams may spend, and days that stand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import books, charts, files, frame
from dashboard import format as words
from dashboard.books import AMORTIZED, FULLY_LOADED, Asked
from dashboard.data import Run
from rose.clock import utc
from rose.pricing.closing.records import Posting
from rose.pricing.closing.statement import Statement
from rose.pricing.export import bill as exported
from rose.pricing.money import format_usd
from rose.pricing.watch.anomaly import RULE, signed
from rose.pricing.watch.budget import TeamBudget

_NOW = "now"
_BY = {
    AMORTIZED: ("team", "bucket", "run", "device-class", "policy-version", "task", "fate", "cause", "day"),
    FULLY_LOADED: ("team", "work", "run", "device-class", "policy-version", "task", "fate", "day"),
}


def show(ledger: Path, runs: list[Run]) -> None:
    _closes(ledger)
    now, span = datetime.now(UTC), books.span(ledger)
    if span is None:
        st.info("No device has joined a run yet, so there is nothing to budget or to watch.")
        return
    st.subheader("Which month?")
    left, right = st.columns(2)
    with left:
        months = books.months(span, now)
        newest = next(month for month in months if month.from_ns < span.to_ns)
        month = st.selectbox(
            "Month, UTC", months, months.index(newest), format_func=lambda of: of.label, key="books-month"
        )
    with right:
        book = frame.book(runs, "books")
    present = books.provenances(ledger, month)
    if not present:
        st.info(f"No run lies in {month.label}, so nothing is charged.")
        return
    provenance = frame.provenance(present, "books")
    if provenance is None:
        return
    frame.banner(provenance)
    of = Asked(ledger=ledger, period=month, book=book, provenance=provenance)
    _budgets(of)
    _anomalies(of, now)


def _closes(ledger: Path) -> None:
    st.subheader("What is closed?")
    found = books.closes(ledger)
    if found.value is None:
        st.error(words.plain(found.error or words.NOT_ENOUGH_DATA))
        return
    if not found.value:
        st.info("No period is closed yet. `rose books close --month 2026-11` closes one; it never changes after that.")
        return
    as_of_ns = _as_of(found.value)
    known = _known(found.value, as_of_ns)
    frame.table(
        _postings(known),
        "events of the ledger, writer `closing`; amortized. A close never changes: what was found out later is a "
        "correction of its own. Verified: whether the ledger's hash chain held at every posting.",
    )
    _check(ledger)
    left, middle, right = st.columns(3)
    close_id = left.selectbox("Close", list(reversed(known)), key="books-close")
    view = middle.radio(
        "View", (AMORTIZED, FULLY_LOADED), format_func=lambda of: of.replace("-", " "), horizontal=True,
        key="books-view",
    )  # fmt: skip
    by = right.selectbox("Divided by", _BY[view], format_func=lambda of: of.replace("-", " "), key="books-by")
    stated = books.stated(ledger, close_id, (by,), view, as_of_ns)
    if stated.value is None:
        st.error(words.plain(stated.error or words.NOT_ENOUGH_DATA))
        return
    _statement(stated.value)
    close = stated.value.close
    files.offer(f"{close_id}-{len(close.posted)}", f"rose-{close_id}", lambda: exported.of_closed(ledger, close))


def _as_of(closes: Mapping[str, Sequence[Posting]]) -> int | None:
    """The instant that the books are shown as of; None: as they are now. Between two postings nothing changes."""
    posted = sorted((each for of in closes.values() for each in of), key=lambda each: -each.posted_us)
    named: dict[int | None, str] = {None: _NOW}
    for each in posted:
        what = "close of" if each.number == 0 else f"correction {each.number} of"
        named.setdefault(each.posted_ns, f"{utc(each.posted_ns)[:19].replace('T', ' ')} UTC, after the {what} "
                                         f"{each.close_id}")  # fmt: skip
    return st.selectbox("As it was known", list(named), format_func=named.__getitem__, key="books-as-of")


def _known(closes: Mapping[str, Sequence[Posting]], as_of_ns: int | None) -> dict[str, list[Posting]]:
    """What was posted up to an instant."""
    known = {
        close_id: [each for each in of if as_of_ns is None or each.posted_ns <= as_of_ns]
        for close_id, of in closes.items()
    }
    return {close_id: of for close_id, of in known.items() if of}


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
                "closed": format_usd(first.cost_nano),
                "corrections": f"{len(later)}: {signed(corrected)}" if later else "none",
                "total": format_usd(first.cost_nano + corrected),
                "nano-dollars": f"{first.cost_nano + corrected:,}",
                "closed_at": utc(first.posted_ns)[:19].replace("T", " "),
                "by": first.who,
                "price book": words.book(first.book),
            }
        )
    return pl.DataFrame(rows)


def _check(ledger: Path) -> None:
    if not st.button("Check every frozen byte", help="What `rose books verify` does."):
        return
    with st.spinner("Comparing frozen files, the ledger and the books …"):
        found = books.checked(ledger)
    if found.value is None:
        st.error(words.plain(found.error or words.NOT_ENOUGH_DATA))
    elif found.value.problems:
        st.error("\n\n".join(words.plain(problem) for problem in found.value.problems))
    else:
        of = found.value
        st.success(f"{of.closes} closes, {of.corrections} corrections, {of.files} files: the books are sound.")


def _statement(of: Statement) -> None:
    stamp, first = of.close.stamp, of.close.posted[0]
    frame.banner(stamp.provenance)
    st.caption(words.stamp(stamp, words.book(first.book)))
    frame.metrics(
        ("As it was closed", of.closed, f"By {first.who}, {utc(first.posted_ns)[:19]}Z."),
        ("Corrections since", of.corrections, f"{len(of.close.posted) - 1}, each with its reason."),
        ("As it is known", of.total, "Closed and corrections together."),
    )
    if len(of.close.posted) > 1:
        rows = [
            {"no": posting.number, "posted": utc(posting.posted_ns)[:19].replace("T", " "),
             "amount": signed(posting.cost_nano), "rows": posting.rows, "why": posting.reason or "",
             "by": posting.who, "verified": "yes" if posting.verified else "UNVERIFIED"}
            for posting in of.close.posted[1:]
        ]  # fmt: skip
        frame.table(pl.DataFrame(rows), f"corrections of {of.close.close_id}, amortized, {stamp}")
    lines = [
        dict(zip(of.by, line.values, strict=True))
        | {"cost": line.cost.text, "share": line.share.text, "nano-dollars": f"{line.cost.value:,}"}
        | ({"device time": line.time.text} if line.time else {})
        for line in of.lines
    ]
    total = {of.by[0]: "sum", "cost": of.total.text, "share": "100.0%", "nano-dollars": f"{of.total.value:,}"}
    frame.table(
        pl.DataFrame([*lines, total]),
        f"charges of {of.close.close_id} with its corrections, {of.total.view}, {stamp}. In nano-dollars: closed "
        f"{of.closed.value:,} + corrections {of.corrections.value:,} = {of.total.value:,}, the sum of the rows.",
    )


def _budgets(of: Asked) -> None:
    st.subheader("Will the month stay within its budgets?")
    found = frame.asked(
        of.ledger, lambda unverified: books.budgets(replace(of, unverified=unverified)), "books-budgets"
    )
    if found is None:
        return
    if not found:
        st.info(
            f"No budget is set for {of.period.label}. "
            f"`rose books budget set TEAM USD --month {of.period.label}` sets one."
        )
        return
    stamp = found[0].spent.stamp
    st.altair_chart(charts.budgets(_chart(found), stamp.currency), width="stretch", alt="Budgets, spent and forecast")
    rows = [
        {
            "team": each.team,
            "budget": each.budget.text,
            "spent": each.spent.text,
            "of it closed": each.closed.text,
            "left": each.left.text,
            "forecast": words.short(each.forecast),
            "95% interval": each.forecast.interval_text,
            "chance of going over": words.short(each.over),
        }
        for each in found
    ]
    notes = dict.fromkeys(each.forecast.why or each.forecast.basis for each in found)
    unknown = [f"no charge names {each.team}" for each in found if not each.known]
    frame.table(pl.DataFrame(rows), f"charges and `books.duckdb`, amortized, {stamp}; {'; '.join([*notes, *unknown])}.")


def _chart(found: Sequence[TeamBudget]) -> pl.DataFrame:
    rows = [
        {"team": each.team, "text": f"{each.spent.text}, {words.short(each.forecast)}, {each.budget.text}"}
        | {name: None if nano is None else nano / 1e9 for name, nano in (
            ("spent", each.spent.value), ("budget", each.budget.value), ("forecast", each.forecast.value),
            ("low", each.forecast.low), ("high", each.forecast.high))}
        for each in found
    ]  # fmt: skip
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(("forecast", "low", "high"), pl.Float64))


def _anomalies(of: Asked, now: datetime) -> None:
    st.subheader("Which days stand out?")
    over = books.over(of.period, now)
    if over is None:
        st.info("No day of this month is over yet.")
        return
    if not books.provenances(of.ledger, over):
        st.info(f"No run lies in the days of {of.period.label} that are over.")
        return
    found = frame.asked(
        of.ledger, lambda unverified: books.watched(replace(of, period=over, unverified=unverified)), "books-days"
    )
    if found is None:
        return
    if found.not_judged:
        st.info(
            f"Not enough data for {len(found.not_judged)} of the {len(found.not_judged) + len(found.judged)} days with "
            "charges: too few charged days come before them."
        )
    if found.judged and not found.anomalies:
        st.markdown(f"None of the {len(found.judged)} days that could be judged.")
    for each in found.anomalies:
        st.markdown(words.plain(f"**{each.day}: {each.metric} {each.value.text}**, {signed(each.change.total)} from "
                                f"{each.median.text} on {each.compared_with}: {each.driver}."))  # fmt: skip
    if found.anomalies:
        rows = [
            {"day": str(each.day), "what": each.metric, "value": each.value.text, "unit": words.unit(each.value),
             "median": each.median.text, "change": signed(each.change.total),
             **{effect: signed(nano) for effect, nano in each.change.effects.items()},
             "deviations": None if each.deviations is None else round(each.deviations, 1)}
            for each in found.anomalies
        ]  # fmt: skip
        frame.table(pl.DataFrame(rows), f"charges, amortized, {found.stamp}. The effects sum to the change.")
    st.caption(f"{RULE[0].upper()}{RULE[1:]}. {found.stamp}.")


frame.ledger_page("Books", "What is closed, what was corrected since, and is anything out of line?", show)
