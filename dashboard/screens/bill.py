"""What a period cost, and who pays for what."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import books, charts, drill, files, frame
from dashboard.access import session
from dashboard.books import AMORTIZED, FULLY_LOADED, Asked
from dashboard.data import Run
from rose.pricing.closing import charge_algebra
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.period import NS_PER_DAY, Period, moment, month_at, of_day
from rose.pricing.export import bill as exported
from rose.pricing.figures import Figures

_ALL, _DAYS = "All of it", "Days that I choose"
#: From so many days on, bars are months.
_DAYS_SHOWN = 92
_VIEWS = {AMORTIZED: "amortized", FULLY_LOADED: "fully loaded"}
_VIEW_WORDS = {
    AMORTIZED: "Each second at what its device costs, by what it was used for. Idle time is a cost of its own.",
    FULLY_LOADED: "The same dollars, charged to the work they are there for: idle time and overhead are in its price.",
}
#: What a team's bill is divided by, in words and as charges call it.
_BY = {
    "run": "run", "device class": "device-class", "policy version": "policy-version", "task": "task",
    "fate of the tokens": "fate", "bucket": "bucket",
}  # fmt: skip
_EVERY_TEAM = "every team"


def show(ledger: Path, runs: list[Run]) -> None:
    now = datetime.now(UTC)
    span = books.span(ledger)
    if span is None:
        st.info("No device has joined a run yet, so nothing is charged.")
        return
    left, right = st.columns(2)
    with left:
        period = _period(span, now)
    view = right.radio("View", list(_VIEWS), format_func=_VIEWS.__getitem__, horizontal=True, key="bill-view")
    if period is None:
        return
    present = books.provenances(ledger, period)
    if not present:
        st.info(f"No run lies in {period.label}, so nothing is charged.")
        return
    provenance = frame.provenance(present, "bill")
    if provenance is None:
        return
    book = frame.book(ledger, period)
    if book is None:
        return
    asked = Asked(ledger=ledger, period=period, book=book, provenance=provenance)
    bill = frame.asked(ledger, lambda unverified: books.bill(replace(asked, unverified=unverified)), "bill")
    if bill is None:
        return
    asked = replace(asked, unverified=not bill.verified)
    frame.banner(bill.provenance)
    frame.stamp(bill.stamp, _prices(bill))
    shown = bill.frame if view == AMORTIZED else books.loaded(asked, bill)
    _total(bill, view)
    _days(bill, shown, view)
    _teams(bill, shown, view)
    _waste(bill)
    _take(asked, bill)


def _period(span: Period, now: datetime) -> Period | None:
    """The period that is chosen: the newest month in which devices were there, unless another is."""
    newest, this = month_at(span.to_ns - 1), books.this_month(now)
    last = month_at(this.from_ns - 1)
    labels = {newest: f"Newest month with data, {newest.label}"}
    labels[this] = f"This month, {this.label}"
    labels[last] = f"Last month, {last.label}"
    choices: list[Period | str] = [*labels, _ALL, _DAYS]
    chosen = st.selectbox(
        "Period, UTC",
        choices,
        key="bill-period",
        format_func=lambda choice: choice if isinstance(choice, str) else labels[choice],
    )
    if isinstance(chosen, Period):
        return chosen
    if chosen == _ALL:
        return span
    ends = (moment(span.from_ns).date(), moment(span.to_ns).date() - timedelta(days=1))
    days = st.date_input("First and last day, UTC", ends, key="bill-days")
    match days:
        case (date() as first, date() as until):
            return Period(of_day(first).from_ns, of_day(until).to_ns)
    st.info("Choose the last day too.")
    return None


def _prices(bill: Bill) -> str | None:
    if not bill.closes:
        return None
    closed = ", ".join(bill.closes)
    return f"{bill.stamp.book.line} for open hours, closed ones at the prices they were closed at ({closed})"


def _total(bill: Bill, view: str) -> None:
    st.subheader("What did it cost?")
    st.markdown(f"{_VIEW_WORDS[view]} The two views are the same dollars: they are **never added**.")
    make = Figures(bill.stamp)

    def sum_of(*which: pl.Expr) -> int:
        return int(bill.frame.filter(*which)["cost_nano"].sum())

    could = pl.col("cause") == "could have been lent"
    frame.metrics(
        ("The bill", make.amount(sum_of(), _VIEWS[view]), f"{bill.period.label}. Every device, used or not."),
        ("Of it in closed periods", make.amount(sum_of(pl.col("closed")), _VIEWS[AMORTIZED]),
         "As it was closed, with the corrections since. The rest is open and may change."),
        ("Unallocated", make.amount(sum_of(pl.col("team") == "unallocated"), _VIEWS[AMORTIZED]),
         "Nobody pays it: the run has no tag that says which team does."),
        ("Idle, could have been lent", make.amount(sum_of(pl.col("bucket") == "idle", could), _VIEWS[AMORTIZED]),
         "Serving devices' idle time outside of every lease."),
    )  # fmt: skip


def _days(bill: Bill, shown: pl.DataFrame, view: str) -> None:
    st.subheader("When, and for what?")
    key = "bucket" if view == AMORTIZED else "work"
    monthly = (bill.period.to_ns - bill.period.from_ns) // NS_PER_DAY > _DAYS_SHOWN
    by_day = drill.by_day(shown, key, view, monthly=monthly)
    per = "month" if monthly else "day"
    if by_day.is_empty():
        st.info("Nothing cost anything at these prices.")
        return
    st.altair_chart(
        charts.money_by_day(by_day, bill.stamp.currency), width="stretch", alt=f"Cost by UTC {per} and {key}"
    )
    st.caption(f"Cost by UTC {per} and {key}, {_VIEWS[view]}, {bill.stamp}. Source: charges.")


def _teams(bill: Bill, shown: pl.DataFrame, view: str) -> None:
    st.subheader("Who pays?")
    st.markdown("By the tags of each run: `team` for rollouts and training, `serving_team` for serving devices.")
    by_team = drill.table(shown, ["team"], view, always="unallocated")
    frame.table(by_team, f"charges, {_VIEWS[view]}, {bill.stamp}. Sums to the bill, to the nano-dollar.")
    st.subheader("For what?")
    left, right = st.columns(2)
    teams = by_team["team"].to_list()[:-1]
    team = left.selectbox("Team", [_EVERY_TEAM, *teams], key="bill-team")
    by = right.selectbox("Divided by", list(_BY), key="bill-by")
    column = "work" if (_BY[by], view) == ("bucket", FULLY_LOADED) else _BY[by]
    charged, whole = shown, "the bill"
    if team != _EVERY_TEAM:
        charged, whole = shown.filter(pl.col("team") == team), f"what {team} pays above"
    frame.table(
        drill.table(charged, [column], view),
        f"charges of {team} by {by}, {_VIEWS[view]}, {bill.stamp}. Sums to {whole}, to the nano-dollar. Unallocated: "
        "what has no such thing, such as the task of time spent serving.",
    )


def _waste(bill: Bill) -> None:
    caption = f"charges, {_VIEWS[AMORTIZED]}, {bill.stamp}"
    st.subheader("What became of the rollouts?")
    frame.table(
        drill.waste(bill.frame),
        f"{caption}. Sums to the bucket rollout. A rejected answer is no waste: it teaches too.",
    )
    st.subheader("What was paid for and not used?")
    frame.table(
        drill.idle(bill.frame),
        f"{caption}. Sums to the buckets idle and unaccounted. Only time of serving devices outside of a lease could "
        "have been lent; leased, not used: lent to rollouts, which had nothing to do there.",
    )
    st.subheader("What is billed beside device time?")
    beside = drill.invoiced(bill.frame)
    if beside.height == 1:
        st.info("No weights were sent over a route, and no power was metered that the devices' prices do not include.")
        return
    frame.table(beside, f"{caption}. Sums to the buckets transfer and energy. GB are 1e9 bytes.")


def _take(asked: Asked, bill: Bill) -> None:
    st.subheader("Take it with you")
    name = f"rose-{bill.provenance}-{bill.period.label}"
    st.markdown("Every charge of the period in a row, with what it was for, who pays, and the events it was made from.")
    session.download_button("Download charges (CSV)", lambda: drill.csv(bill), f"{name}.csv", "text/csv")
    if bill.closes and not _is_one_close(asked, bill):
        st.info(
            f"A part of this period is closed ({', '.join(bill.closes)}). The other files are of a whole close, on the "
            "page Books, or of a period that is open."
        )
        return
    files.offer(f"{name}-{asked.book.sha256}-{charge_algebra.total(bill.frame)}", name, lambda: _exported(asked, bill))


def _is_one_close(asked: Asked, bill: Bill) -> bool:
    """Whether what the period cost is what one close says, all of it."""
    posted = (books.closes(asked.ledger).value or {}).get(bill.closes[0], [])
    whole = sum(posting.cost_nano for posting in posted) == charge_algebra.total(bill.frame)
    return whole and bool(bill.frame["closed"].all())


def _exported(asked: Asked, bill: Bill) -> exported.Bill:
    if bill.closes:
        return exported.of_close(asked.ledger, bill.closes[0], allow_unverified=asked.unverified)
    return exported.of_period(
        asked.ledger, asked.book, from_ns=asked.period.from_ns, to_ns=asked.period.to_ns,
        provenance=bill.provenance, allow_unverified=asked.unverified,
    )  # fmt: skip


frame.ledger_page("Bill", "What did the period cost, who pays, and why?", show)
