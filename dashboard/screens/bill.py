"""What a period cost, and who pays for what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import bar, books, charts, display, drill, escape, files, frame
from dashboard import format as words
from dashboard.access import session
from dashboard.books import AMORTIZED, FULLY_LOADED, Asked
from dashboard.data import Run
from rose.pricing.closing import charge_algebra
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.period import NS_PER_DAY
from rose.pricing.export import bill as exported
from rose.pricing.figures import Figures

#: From so many days on, bars are months.
_DAYS_SHOWN = 92
_VIEWS = {AMORTIZED: "amortized", FULLY_LOADED: "fully loaded"}
_VIEW_WORDS = {
    AMORTIZED: "Each second at what its device costs, by what it was used for. Idle time is a cost of its own.",
    FULLY_LOADED: "The same dollars, charged to the work they are there for: idle time and overhead are in its price.",
}
#: What a team's bill is divided by, in words and as charges call it.
_BY = {
    "run": "run",
    "device class": "device-class",
    "policy version": "policy-version",
    "task": "task",
    "fate of the tokens": "fate",
    "bucket": "bucket",
}


def show(ledger: Path, runs: list[Run]) -> None:
    asked = frame.in_period(ledger)
    if asked is None:
        return
    view = bar.chosen().view
    charged = asked
    bill = frame.asked(ledger, lambda unverified: books.bill(replace(charged, unverified=unverified)), "bill")
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


def _prices(bill: Bill) -> str | None:
    if not bill.closes:
        return None
    closed = ", ".join(bill.closes)
    return f"{bill.stamp.book.line} for open hours, closed ones at the prices they were closed at ({closed})"


def _total(bill: Bill, view: str) -> None:
    st.header("What did it cost?")
    st.markdown(f"{_VIEW_WORDS[view]} The two views are the same dollars: they are **never added**.")
    make = Figures(bill.stamp)

    def sum_of(*which: pl.Expr) -> int:
        return int(bill.frame.filter(*which)["cost_nano"].sum())

    could = pl.col("cause") == "could have been lent"
    frame.metrics(
        ("The bill", make.amount(sum_of(), _VIEWS[view]), f"{words.period(bill.period)}. Every device, used or not."),
        (
            "Of it in closed periods",
            make.amount(sum_of(pl.col("closed")), _VIEWS[AMORTIZED]),
            "As it was closed, with the corrections since. The rest is open and may change.",
        ),
        (
            "Unallocated",
            make.amount(sum_of(pl.col("team") == "unallocated"), _VIEWS[AMORTIZED]),
            "Nobody pays it: the run has no tag that says which team does.",
        ),
        (
            "Idle, could have been lent",
            make.amount(sum_of(pl.col("bucket") == "idle", could), _VIEWS[AMORTIZED]),
            "Serving devices' idle time outside of every lease.",
        ),
    )


def _days(bill: Bill, shown: pl.DataFrame, view: str) -> None:
    st.header("When, and for what?")
    key = "bucket" if view == AMORTIZED else "work"
    monthly = (bill.period.to_ns - bill.period.from_ns) // NS_PER_DAY > _DAYS_SHOWN
    by_day = drill.by_day(shown, key, view, monthly=monthly)
    per = "month" if monthly else "day"
    if by_day.is_empty():
        st.info("Nothing cost anything at these prices.")
        return
    display.chart(charts.money_by_day(by_day, bill.stamp.currency), about=f"Cost by UTC {per} and {key}")
    st.caption(f"Cost by UTC {per} and {key}, {_VIEWS[view]}, {bill.stamp}. Source: charges.")


def _teams(bill: Bill, shown: pl.DataFrame, view: str) -> None:
    st.header("Who pays?")
    st.markdown("By the tags of each run: `team` for rollouts and training, `serving_team` for serving devices.")
    frame.drilled(
        drill.table(shown, ["team"], view, always="unallocated"),
        f"charges, {_VIEWS[view]}, {bill.stamp}. Sums to the bill, to the nano-dollar.",
    )
    st.header("For what?")
    team = bar.chosen().team
    by = st.selectbox("Divided by", list(_BY), key="bill-by")
    column = "work" if (_BY[by], view) == ("bucket", FULLY_LOADED) else _BY[by]
    charged, who, whole = shown, "every team", "the bill"
    if team is not None:
        charged, who = shown.filter(pl.col("team") == team), escape.markdown(team)
        whole = f"what {who} pays above"
    frame.drilled(
        drill.table(charged, [column], view),
        f"charges of {who} by {by}, {_VIEWS[view]}, {bill.stamp}. Sums to {whole}, to the nano-dollar. Unallocated: "
        "what has no such thing, such as the task of time spent serving.",
    )


def _waste(bill: Bill) -> None:
    caption = f"charges, {_VIEWS[AMORTIZED]}, {bill.stamp}"
    st.header("What became of the rollouts?")
    frame.drilled(
        drill.waste(bill.frame),
        f"{caption}. Sums to the bucket rollout. A rejected answer is no waste: it teaches too.",
    )
    st.header("What was paid for and not used?")
    frame.drilled(
        drill.idle(bill.frame),
        f"{caption}. Sums to the buckets idle and unaccounted. Only time of serving devices outside of a lease could "
        "have been lent; leased, not used: lent to rollouts, which had nothing to do there.",
    )
    st.header("What is billed beside device time?")
    beside = drill.invoiced(bill.frame)
    if beside.height == 1:
        st.info("No weights were sent over a route, and no power was metered that the devices' prices do not include.")
        return
    metered = ""
    if beside["kWh"].null_count() == beside.height:
        beside, metered = beside.drop("kWh"), " Energy (kWh) was not metered beside what the devices' prices include."
    frame.drilled(beside, f"{caption}. Sums to the buckets transfer and energy. GB are 1e9 bytes.{metered}")


def _take(asked: Asked, bill: Bill) -> None:
    st.header("Take it with you")
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
        asked.ledger,
        asked.book,
        from_ns=asked.period.from_ns,
        to_ns=asked.period.to_ns,
        provenance=bill.provenance,
        allow_unverified=asked.unverified,
    )


frame.ledger_page(
    "Bill", "What did the period cost, who pays, and why?", show, uses=("period", "view", "team", "provenance")
)
