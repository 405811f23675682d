"""How serving did in a run, and what it took back: what lending may harm, none of which takes a price."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import data, escape, fleet, window
from dashboard.cards import percent
from dashboard.data import Run
from dashboard.preemptions import totals


def show(ledger: Path, run: Run) -> None:
    """Late requests, the tails of both latencies, and preemptions, of the whole run."""
    st.subheader("How did serving do?")
    every = window.whole(run)
    latency = data.in_window(ledger, "dashboard/fleet_latency", run, every, blocks=1)
    requests = int(latency["requests"].sum())
    if requests:
        late = percent(Fraction(requests - int(latency["kept"].sum()), requests))
        days = data.by_day(every)
        cards = [
            ("Missed a latency budget", str(late), f"of {requests:,} requests, whole fleet"),
            _tail("First token, p99", "ttft", latency, days=days),
            _tail("Each further token, p99", "tpot", latency, days=days),
        ]
        for column, (label, value, about) in zip(st.columns(len(cards)), cards, strict=True):
            column.metric(label, value)
            column.caption(about)
    else:
        st.info("No serving request was recorded in this run: clients or gateways record them.")
    st.markdown(totals.in_words(totals.read(ledger, run, every)))
    st.caption(
        f"With and without lending together, {run.provenances[0]}. Source: `request`, `preemption`. Fleet now and "
        "Preemptions and sync have both over time."
    )


def without_prices(why: str) -> None:
    """What else the page has, and that it takes a price book."""
    st.info(
        "What borrowing saved, what it added to the bill, what that depends on and what a later burst may cost are not "
        f"known: {escape.prose(why)}"
    )


def _tail(label: str, name: str, latency: pl.DataFrame, *, days: bool) -> tuple[str, str, str]:
    """The slowest hundredth, of a long run its worst day, beside its budget."""
    tail, budget = latency[f"{name}_p99_ms"].max(), fleet.budget_ms(latency, name)
    value = "unknown" if tail is None else totals.duration(float(str(tail)))
    beside = "requests had different budgets" if budget is None else f"budget {totals.duration(budget)}"
    return label, value, f"the worst day; {beside}" if days else beside
