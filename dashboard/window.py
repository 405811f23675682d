"""The time that charts of a run show: the window of the address, which a slider changes, or dragging over a strip."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import polars as pl
import streamlit as st

from dashboard import bar, display, link, timeline
from dashboard.data import Run, Window, by_day
from rose.pricing.closing.period import naive, nanoseconds

#: Parts of the slider.
_STEPS = 200


class _Control(NamedTuple):
    """What a reader chooses the window with, in the session: how often it was drawn anew, the window that it was drawn
    with then, and the one that it shows now."""

    number: int
    begun: str | None
    shows: str | None


def whole(run: Run) -> Window:
    """From the begin of a run to its end, or to its last event."""
    begin, end = run.started_at or run.last_event_at, run.ended_at or run.last_event_at
    return Window(nanoseconds(begin), max(nanoseconds(end), nanoseconds(begin)) + 10**9)


def within(run: Run, chosen: str | None) -> Window:
    """The window that is chosen, as far as it lies in the run; else the whole run."""
    every = whole(run)
    if chosen is None:
        return every
    from_ns, to_ns = link.window_ns(chosen)
    from_ns, to_ns = max(from_ns, every.from_ns), min(to_ns, every.to_ns)
    return Window(from_ns, to_ns) if from_ns < to_ns else every


def bin_width(shown: Window, blocks: int) -> timedelta:
    """How long a bin of a query is that makes at most so many of a window."""
    if by_day(shown):
        return timedelta(days=1)
    return timedelta(microseconds=max(10**6, (shown.to_ns - shown.from_ns) // 1000 // blocks + 1))


def slider(run: Run) -> Window:
    """The window of the address, and the slider that changes it; a run of under three minutes has none."""
    every, shown = whole(run), within(run, bar.chosen().window)
    begin, end = naive(every.from_ns).replace(second=0, microsecond=0), naive(every.to_ns) + timedelta(minutes=1)
    end = end.replace(second=0, microsecond=0)
    if end - begin < timedelta(minutes=3):
        return shown
    step = max(timedelta(minutes=1), timedelta(minutes=(end - begin) // timedelta(minutes=_STEPS)))
    now = (begin, end) if shown == every else (naive(shown.from_ns), naive(shown.to_ns))
    key = f"window-{run.run_id}-{_control('slider').number}"

    def moved() -> None:
        first, last = (at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at for at in st.session_state[key])
        _pick("slider", _written(first, last, begin, end))

    if run.status == "running" and shown == every:
        # The end of a run that goes on moves: a slider that remembers it would cut off what is new.
        st.session_state.pop(key, None)
    st.slider(
        "Time (UTC)",
        begin,
        end,
        now,
        step,
        format="YYYY-MM-DD HH:mm",
        key=key,
        on_change=moved,
        help="What is drawn. A shorter time is drawn finer, and shows rows that are too many for a longer one.",
    )
    return shown


def strip(run: Run, states: pl.DataFrame) -> None:
    """How much was lent in the whole run, by its `states`; dragging over it chooses the window."""
    every, control = whole(run), _control("strip")
    begin, end = naive(every.from_ns), naive(every.to_ns)
    key = f"strip-{run.run_id}-{control.number}"

    def dragged() -> None:
        brushed = st.session_state[key]["selection"].get(timeline.BRUSH, {}).get(timeline.BRUSHED)
        _pick("strip", _brushed(brushed, begin, end) if brushed else None)

    shown = within(run, control.begun)
    marked = None if shown == every else (naive(shown.from_ns), naive(shown.to_ns))
    display.chart(
        timeline.strip(states, begin, end, marked),
        key=key,
        on_select=dragged,
        about="Lent share of the whole run; the slider above chooses a time of it too",
    )


def _brushed(milliseconds: list[float], begin: datetime, end: datetime) -> str | None:
    """What was dragged, in whole seconds; None if that is everything, or less than a second.

    Vega draws UTC as if it were the browser's own time, and tells it so.
    """
    zone = ZoneInfo(st.context.timezone or "UTC")
    first, last = (datetime.fromtimestamp(round(at / 1000), zone).replace(tzinfo=None) for at in milliseconds)
    first, last = max(first, begin), min(last, end)
    return None if last - first < timedelta(seconds=1) else _written(first, last, begin, end)


def _written(first: datetime, last: datetime, begin: datetime, end: datetime) -> str | None:
    """A window as an address has it; None: everything from begin to end."""
    return None if first <= begin and last >= end else link.window(first, last)


def _control(name: str) -> _Control:
    """The control as it is to be drawn. What it chose itself it shows already, and drawing it anew would end a drag, or
    lose the keyboard; what was chosen elsewhere it shows only if it is drawn anew."""
    key, now = f"window-{name}", bar.chosen().window
    control: _Control = st.session_state.get(key, _Control(0, now, now))
    if now != control.shows:
        control = _Control(control.number + 1, now, now)
    st.session_state[key] = control
    return control


def _pick(name: str, chosen: str | None) -> None:
    """From a callback: the control shows this now, and the page is to."""
    st.session_state[f"window-{name}"] = st.session_state[f"window-{name}"]._replace(shows=chosen)
    bar.pick(window=chosen)
