"""Notes on days: marks on a chart of days, a short list of them, and a form to add one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import altair as alt
import polars as pl
import streamlit as st

from dashboard import acting, data, escape
from dashboard.access import session
from rose.clock import iso
from rose.pricing.annotations import notes
from rose.pricing.annotations.notes import Note
from rose.pricing.closing.period import Period, day_of

#: So many are listed, the newest; the chart marks all.
LISTED_MAX = 10
_PLACE, _DAY, _TEXT = "notes", "notes-day", "notes-text"
_COLOUR = "#7A8794"


def within(ledger: Path, period: Period) -> list[Note]:
    """The notes on days of a period, by day. Without them where they cannot be read: the page's other parts say why."""
    known = data.kept(lambda: notes.load(ledger), ledger, "notes")
    first, last = day_of(period.from_ns), day_of(period.to_ns - 1)
    return [note for note in known.value or [] if first <= note.day <= last]


def marks(known: Sequence[Note], height: float) -> alt.LayerChart:
    """A mark at `height` on each day with notes, which shows their text. To be laid over `charts.cost_by_day`."""
    days = (
        pl.DataFrame([{"day": note.day, "note": note.text} for note in known])
        .group_by("day", maintain_order=True)
        .agg(pl.col("note").str.join(" · "))
        .with_columns(amount=pl.lit(height))
    )
    base = alt.Chart(days).encode(
        x=alt.X("yearmonthdate(day):T", bandPosition=0.5),
        tooltip=[alt.Tooltip("day:T", format="%Y-%m-%d"), alt.Tooltip("note:N", title="note")],
    )
    marked = base.mark_point(shape="triangle-down", filled=True, size=110, color=_COLOUR, opacity=1, yOffset=-8)
    return base.mark_rule(color=_COLOUR, strokeDash=[2, 3]) + marked.encode(y="amount:Q")


def show(ledger: Path, known: Sequence[Note], period: Period, last_charged: date) -> None:
    """The newest notes, and for whom it is, what adds and removes one: to begin with on the last day with charges."""
    acting.told(_PLACE)
    may = session.may("note")
    for note in list(reversed(known))[:LISTED_MAX]:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            said = escape.markdown(f"{note.text} ({note.by}, {iso(note.at_us)[:10]})")
            st.markdown(f"**{note.day}** {said}", width="content")
            if may:
                st.button("Remove", key=f"note-{note.note_id}", type="tertiary", on_click=_remove, args=(ledger, note))
    if (more := len(known) - LISTED_MAX) > 0:
        st.caption(f"and {more} older: the chart marks them, and `rose note list` has all.")
    if may:
        with st.popover("Add a note", icon=":material/add_comment:"), st.form("notes", border=False):
            first, last = day_of(period.from_ns), day_of(period.to_ns - 1)
            st.date_input("Day, UTC", min(max(last_charged, first), last), key=_DAY)
            st.text_input("What happened, in one line", key=_TEXT, max_chars=500)
            st.form_submit_button("Add", on_click=_add, args=(ledger,))


def _add(ledger: Path) -> None:
    day, text = str(st.session_state[_DAY]), str(st.session_state[_TEXT])

    def write(who: str | None) -> str:
        made = notes.add(ledger, day, text, by=who)
        return f"A note on {made.day}: {made.text}"

    acting.act(_PLACE, "note", f"{day}: {text}", write)


def _remove(ledger: Path, note: Note) -> None:
    def write(who: str | None) -> str:
        gone = notes.remove(ledger, note.note_id, by=who)
        return f"Removed the note on {gone.day}: {gone.text}"

    acting.act(_PLACE, "note", f"remove {note.note_id}", write)
