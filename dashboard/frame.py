"""What every page stands in: the choice of a run, its provenance, live refresh, and errors as messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import polars as pl
import streamlit as st

from dashboard import data
from dashboard import format as words
from dashboard.data import Run
from rose.errors import UserError
from rose.ledger.layout import LedgerError
from rose.pricing.document import Report
from rose.pricing.figures import Figure

Show = Callable[[Path, Run], None]

#: How often a page looks for news, in seconds: of a run that goes on, and where none is expected soon.
LIVE_S, QUIET_S = 3.0, 30.0
_CHOSEN = "run"
_BADGES: dict[str, Literal["green", "violet", "orange"]] = {"live": "green", "replay": "violet", "simulated": "orange"}


def sidebar() -> None:
    """Choose a run, newest first; its provenance stands beside it."""
    st.sidebar.markdown("### ROSE\nRollouts on borrowed serving devices, and what they cost.")
    try:
        ledger = data.root()
        found = {run.run_id: run for run in data.runs(ledger)}
    except (UserError, LedgerError):
        return  # the page itself says what is wrong
    if found:
        run_id = st.sidebar.selectbox("Run", list(found), format_func=lambda key: _label(found[key]), key=_CHOSEN)
        run = found[run_id]
        with st.sidebar:
            _badge(run)
            st.caption(f"`{run.run_id}`, {run.status}, started {words.when(run.started_at)}")
            st.caption(f"Priced with `{data.price_book(run)}`")
    st.sidebar.caption(f"Ledger `{ledger.name}`")


def _label(run: Run) -> str:
    return run.name if run.started_at is None else f"{run.name}, {run.started_at:%Y-%m-%d %H:%M}"


def _badge(run: Run) -> None:
    for provenance in run.provenances:
        st.badge(
            provenance.upper(), color=_BADGES.get(provenance, "orange"), help=words.PROVENANCE_WORDS.get(provenance)
        )


def page(title: str, asks: str, show: Show) -> None:
    """A page: its heading, then `show`, again and again while its run goes on."""
    st.title(title)
    st.markdown(asks)
    try:
        ledger = data.root()
        found = data.runs(ledger)
    except (UserError, LedgerError) as error:
        st.error(str(error))
        return
    if not found:
        _wait_for_a_run(ledger)
        return
    chosen = st.session_state.get(_CHOSEN)
    run = next((run for run in found if run.run_id == chosen), found[0])
    every = None if run.status != "running" else LIVE_S if data.quiet_s(ledger) < data.QUIET_S else QUIET_S

    # The fragment alone runs again: the page around it stays, and its elements change in place.
    @st.fragment(run_every=every)
    def body() -> None:
        try:
            now = next((other for other in data.runs(ledger) if other.run_id == run.run_id), run)
            if now.status != run.status:
                st.rerun()
            _status(ledger, now)
            if len(now.provenances) > 1:
                mix = " and ".join(now.provenances)
                st.error(f"This run mixes events of different provenance ({mix}): no figure may be made of both.")
            else:
                show(ledger, now)
        except (UserError, LedgerError) as error:
            st.error(str(error))

    body()


def _wait_for_a_run(ledger: Path) -> None:
    @st.fragment(run_every=LIVE_S)
    def wait() -> None:
        try:
            if data.runs(ledger):
                st.rerun()
        except (UserError, LedgerError) as error:
            st.error(str(error))
            return
        st.info("This ledger holds no run yet. `rose demo` or `rose up` writes one; it will appear here by itself.")

    wait()


def _status(ledger: Path, run: Run) -> None:
    """Which run, how it stands, and, for what was not measured, a banner that says so."""
    name = f"**{run.name}** (`{run.run_id}`)"
    if run.status == "running":
        quiet_s = data.quiet_s(ledger)
        if quiet_s < data.QUIET_S:
            st.markdown(f"Run {name}, going on. Last event {words.when(run.last_event_at)}. This page follows it.")
        else:
            st.markdown(f"Run {name} has no end in the ledger. Last event {words.when(run.last_event_at)}.")
            st.warning(
                f"Nothing was written for {words.duration(quiet_s)}: the run was probably killed. "
                "Figures are as of its last event."
            )
    else:
        why = f" ({run.reason})" if run.reason else ""
        st.markdown(f"Run {name}, {run.status}{why}, {words.when(run.ended_at)}.")
    for provenance in run.provenances:
        if provenance != "live":
            st.warning(f"**{provenance.upper()}.** {words.PROVENANCE_WORDS.get(provenance, '')}")


def priced(ledger: Path, run: Run) -> Report | None:
    """The run's cost report; where the ledger does not verify, only at the reader's explicit wish, and marked."""
    found = data.price(ledger, run)
    if found.report is not None:
        return found.report
    st.error(found.error)
    if not st.checkbox("Show figures that are not verified", key=f"unverified-{run.run_id}"):
        return None
    found = data.price(ledger, run, unverified=True)
    if found.report is None:
        st.error(found.error)
    else:
        st.warning("**UNVERIFIED LEDGER.** Do not rely on the figures below.")
    return found.report


def metric(label: str, figure: Figure, explained: str) -> None:
    """One figure: its value, then its view, unit and what it rests on, then one line of what it means."""
    st.metric(label, words.short(figure))
    st.caption(f"{words.terms(figure)}  \n{explained}")


def table(frame: pl.DataFrame, source: str) -> None:
    """A table with the view it comes from below."""
    shown = frame.rename(lambda column: column.replace("_", " "))
    st.dataframe(shown, hide_index=True, width="stretch", placeholder="")
    st.caption(f"Source: {source}")
