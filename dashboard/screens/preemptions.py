"""Why serving took devices back, how fast rollouts gave way, what was lost, and whether weights arrive."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import data, display, frame, lease, window
from dashboard import format as words
from dashboard.data import Run, Window
from dashboard.preemptions import charts, one, totals
from dashboard.preemptions.totals import Taken
from dashboard.syncs import section
from rose.pricing.closing.period import naive


def show(ledger: Path, run: Run) -> None:
    shown = window.slider(run)
    taken = totals.read(ledger, run, shown)
    st.info(totals.in_words(taken))
    _cards(ledger, run, taken)
    if taken.by_action:
        _reactions(run, taken)
        _causes(run, taken)
        _over_time(run, shown, taken)
    st.header("Which preemptions?")
    one.table(ledger, run, shown)
    one.opened(ledger, run)
    lease.opened(ledger, run)
    section.show(ledger, run, shown)


def _cards(ledger: Path, run: Run, taken: Taken) -> None:
    closings = {row["closing"]: int(row["leases"]) for row in data.rows(ledger, "run/lease_totals", run).to_dicts()}
    if not (closings or taken.by_action):
        return
    waited_ms = taken.by_action["yield"]["waited_ms"] if "yield" in taken.by_action else 0
    waited = "an unknown time" if waited_ms is None else words.seconds(round(waited_ms * 1e6))
    cards = [
        (
            "Leases granted",
            sum(closings.values()),
            "in the whole run: " + (", ".join(f"{count:,} {name}" for name, count in closings.items()) or "none"),
        ),
        ("Yields", taken.count("yield"), f"rollouts waited {waited} for serving"),
        *(
            (
                label,
                taken.count(action),
                f"{_total(taken, action, 'requests')} requests moved; tokens kept: "
                f"{_total(taken, action, 'tokens_kept')}, lost: {_total(taken, action, 'tokens_lost')}",
            )
            for label, action in (("Cuts", "cut"), ("Leases revoked", "revoke"))
        ),
    ]
    for column, (label, count, about) in zip(st.columns(len(cards)), cards, strict=True):
        column.metric(label, f"{count:,}")
        column.caption(about)
    st.caption(
        f"{run.provenances[0].capitalize()}. Yield: a rollout waited for serving between two layers; cut: its memory "
        "was reduced; revoke: the lease ended. Source: `preemption`, `lease`."
    )


def _total(taken: Taken, action: str, name: str) -> str:
    value = taken.total(action, name)
    return "unknown" if value is None else f"{value:,}"


def _reactions(run: Run, taken: Taken) -> None:
    st.header("How fast did rollouts give way?")
    if taken.reactions.is_empty():
        st.info("None of them recorded it.")
        return
    for chart in charts.reactions(taken.reactions, taken.budgets):
        display.chart(chart, about="How long rollouts took to give way, with serving's budgets")
    st.caption(
        "How often, by the time from serving's wish for the device until the rollout was off it: of yields, the "
        "longest of each lease and second; of cuts, until the memory was free; of revocations that did not record it, "
        "until the lease was closed in the ledger. Dashed: what serving promises its clients. "
        f"{run.provenances[0].capitalize()}. "
        "Source: `preemption`, `lease`, `request`."
    )
    frame.download(taken.reactions, "reactions", label="Reactions as CSV")


def _causes(run: Run, taken: Taken) -> None:
    st.header("Why, and what was lost?")
    named = taken.causes.with_columns(cause=pl.format("{}: {}", "action", "reason"))
    left, right = st.columns(2)
    with left:
        title = "preemptions"
        display.chart(charts.causes(named, "preemptions", title), about="Preemptions by cause")
    with right:
        moved = named.filter(pl.col("action") != "yield")
        if moved.is_empty():
            st.info("Nothing was cut or revoked, so no token could be lost: a rollout that yields goes on.")
        elif moved["tokens_lost"].eq(0).all() and not moved["tokens_lost"].has_nulls():
            st.info("No token was lost: what was cut or revoked went on elsewhere with the tokens it had.")
        else:
            title = "tokens lost"
            display.chart(charts.causes(moved, "tokens_lost", title), about="Tokens lost by cause")
    kept = named.group_by("action").agg(pl.len().alias("shown"), pl.col("causes").first())
    hidden = int((kept["causes"] - kept["shown"]).sum())
    more = f" {hidden:,} rarer causes are not drawn." if hidden else ""
    st.caption(f"The commonest first.{more} {run.provenances[0].capitalize()}. Source: `preemption`.")
    frame.download(taken.causes, "causes", label="Causes as CSV")


def _over_time(run: Run, shown: Window, taken: Taken) -> None:
    st.header("When?")
    width = window.bin_width(shown, totals.BLOCKS)
    for chart in charts.over_time(taken.over_time, naive(shown.from_ns), naive(shown.to_ns), width):
        display.chart(chart, about="Preemptions over time, of one action")
    bins = "By the day" if data.by_day(shown) else f"In bins of {words.duration(width.total_seconds())}"
    st.caption(f"{bins}, each action on an axis of its own. {run.provenances[0].capitalize()}. Source: `preemption`.")
    frame.download(taken.over_time, "over time", label="Preemptions over time as CSV")


frame.page(
    "Preemptions and sync",
    "Why was a device taken back, how fast did rollouts give way, what was lost, and do weights arrive?",
    show,
)
