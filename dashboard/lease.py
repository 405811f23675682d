"""Leases as a table to pick from, and one of them opened: cause, reaction, tokens, price and events."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import bar, data, display, drill, escape, frame
from dashboard.data import Priced, Run
from dashboard.link import AMORTIZED
from dashboard.preemptions import reaction
from rose.pricing.charges import Charges
from rose.pricing.money import format_usd

_TABLE = "fleet-leases"
_MS = timedelta(milliseconds=1)
_OWN_SECONDS = (
    "Own seconds are those in which this run had the lease, by the slices that name it; seconds are all of it, whoever "
    "had it."
)
#: What the price of an opened lease is of, and what that leaves out: on the page of the fleet, and of an RL run.
_PRICED = ("All of its time, amortized", "Of the device under the lease, whatever it did: serving has a part of it.")
_PRICED_OWN = (
    "This run's part, amortized",
    "What is charged to this run: serving and idle time and other runs have the rest.",
)


def table(run: Run, leases: pl.DataFrame, count: int) -> None:
    """The leases of the window; clicking one opens it."""
    if leases.is_empty():
        st.info("No lease was in force in this time.")
        return
    st.header("Which leases?")
    shown = leases.drop("leases", "run_id", *(["own_seconds"] if run.is_of_fleet else []))
    display.table(
        shown.rename(lambda name: name.replace("_", " ")),
        key=_TABLE,
        on_select=lambda: _pick(leases),
        selection_mode="single-row",
    )
    which = "all" if leases.height == count else f"the newest {leases.height:,} of {count:,}"
    whose = "" if run.is_of_fleet else f" {_OWN_SECONDS}"
    st.caption(f"Source: `lease`, {which} of this time, newest first, times in UTC.{whose} Click a row to open it.")


def opened(ledger: Path, run: Run) -> None:
    """The lease that is picked, if one is."""
    lease_id = bar.chosen().lease
    if lease_id is None:
        return
    st.header("Lease " + escape.markdown(lease_id))
    events = data.of_part(ledger, "dashboard/lease_events", run, lease_id)
    if events.is_empty():
        st.info("This run has no lease of that name.")
        return
    closing = events.filter(pl.col("action").is_in(["released", "preempted", "expired"]), event="lease")
    revoked = events.filter(action="revoke")
    cause = "It is open."
    if closing.height:
        why = closing["reason"][0] or (revoked["reason"][0] if revoked.height else None)
        cause = f"It was {closing['action'][0]}: {escape.markdown(why) if why else 'no reason was recorded'}."
    st.markdown(f"**Cause.** {cause}")
    cards = [
        *_reaction(revoked, closing),
        *((f"Tokens {what}", _sum(events, f"tokens_{what}")) for what in ("kept", "lost")),
    ]
    *places, last = st.columns(len(cards) + 1)
    for place, (label, value) in zip(places, cards, strict=True):
        place.metric(label, value)
    _price(ledger, run, lease_id, last)
    st.caption(reaction.ABOUT if revoked.height else "It was not revoked, so there is no reaction to time.")
    more = " Only the first 1,000 events are listed." if events.height == 1000 else ""
    frame.table(events, f"`lease_event` and `preemption`, {run.provenances[0]}, UTC.{more}")
    st.button("Close the lease", on_click=_close)


def _price(ledger: Path, run: Run, lease_id: str, place: st.delta_generator.DeltaGenerator) -> None:
    def ask(unverified: bool) -> Priced[Charges]:
        return data.charged(ledger, run, unverified=unverified)

    charged = frame.asked(ledger, ask, f"lease-{run.run_id}")
    label, about = _PRICED if run.is_of_fleet else _PRICED_OWN
    if charged is None:
        place.metric(label, "unknown")
        return
    own = charged.frame.filter(lease_id=lease_id)
    place.metric(label, format_usd(int(own["cost_nano"].sum())), help=about)
    if own.is_empty():
        return
    example = " EXAMPLE PRICES, not yours." if charged.book.example else ""
    frame.drilled(
        drill.table(own, ["bucket", "fate"], AMORTIZED),
        f"charges of this lease, amortized, {charged.book.currency}, {charged.provenance}, price book "
        f"{escape.markdown(charged.book.name)}.{example}",
    )


def _reaction(revoked: pl.DataFrame, closing: pl.DataFrame) -> list[tuple[str, str]]:
    """How fast a revoked lease gave way; nothing of another."""
    if revoked.is_empty():
        return []
    closed_after = (closing["event_time"][0] - revoked["event_time"][0]) if closing.height else None
    return reaction.cards(revoked["latency_ms"][0], None if closed_after is None else closed_after / _MS)


def _sum(events: pl.DataFrame, name: str) -> str:
    """Of cuts and revocations: unknown where one of them did not record it."""
    taken = events.filter(pl.col("action").is_in(["cut", "revoke"]))[name]
    return "unknown" if taken.null_count() else f"{int(taken.sum() or 0):,}"


def _pick(leases: pl.DataFrame) -> None:
    rows = st.session_state[_TABLE]["selection"]["rows"]
    bar.pick(lease=leases["lease_id"][rows[0]] if rows else None)


def _close() -> None:
    bar.pick(lease=None)
