"""The time that charts of a run show: the window of the address, which a slider changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import streamlit as st

from dashboard import bar, link
from dashboard.data import Run, Window, by_day
from rose.pricing.closing.period import naive, nanoseconds

#: Parts of the slider.
_STEPS = 200


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
    key = f"window-{run.run_id}"

    def chosen() -> None:
        first, last = st.session_state[key]
        everything = first <= begin and last >= end
        bar.pick(window=None if everything else f"{_instant(first)}..{_instant(last)}")

    if run.status == "running" and shown == every:
        # The end of a run that goes on moves: a slider that remembers it would cut off what is new.
        st.session_state.pop(key, None)
    st.slider(
        "Time (UTC)", begin, end, now, step, format="YYYY-MM-DD HH:mm", key=key, on_change=chosen,
        help="What is drawn. A shorter time is drawn finer, and shows rows that are too many for a longer one.",
    )  # fmt: skip
    return shown


def _instant(at: datetime) -> str:
    """A UTC time as a window in an address has it."""
    return f"{at.astimezone(UTC) if at.tzinfo else at:%Y-%m-%dT%H:%M}"
