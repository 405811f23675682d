"""Preemptions as a table to pick from, and one of them opened: cause, reaction, and what became of the work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st

from dashboard import bar, data, display, escape, frame
from dashboard import format as words
from dashboard.data import Run, Window
from dashboard.link import ACTIONS
from dashboard.preemptions import reaction

_TABLE, _ACTION = "preemptions", "preemptions-action"
_EVERY = "every action"


def table(ledger: Path, run: Run, shown: Window) -> None:
    """The preemptions of the window, of one action if one is picked; clicking a row opens it."""
    st.session_state[_ACTION] = bar.chosen().action or _EVERY
    st.segmented_control("Which", [_EVERY, *ACTIONS], key=_ACTION, on_change=_pick_action)
    rows = data.in_window(ledger, "dashboard/preemptions/newest", run, shown, part=bar.chosen().action)
    if rows.is_empty():
        st.info("There was none in this time.")
        return
    numbers = [name for name, dtype in rows.schema.items() if dtype == pl.Float64]
    listed = rows.drop("preemptions").with_columns(pl.col(numbers).round(3))
    display.table(
        listed.rename(lambda name: name.replace("_", " ")),
        key=_TABLE,
        on_select=lambda: _pick(rows),
        selection_mode="single-row",
    )
    count = int(rows["preemptions"][0])
    which = "all" if rows.height == count else f"the newest {rows.height:,} of {count:,}; a shorter time has others"
    st.caption(
        f"Source: `preemption`, {run.provenances[0]}, {which}, newest first, times in UTC. Yields are recorded by "
        "lease and second. An empty cell is unknown; of a yield it does not apply, since no request moves. Click a row "
        "to open it."
    )
    frame.download(listed, "preemptions")


def opened(ledger: Path, run: Run) -> None:
    """The preemption that is picked, if one is."""
    event_id = bar.chosen().preemption
    if event_id is None:
        return
    st.header("Preemption " + escape.markdown(event_id))
    rows = data.of_part(ledger, "dashboard/preemptions/one", run, event_id)
    if rows.is_empty():
        st.info("This run has no preemption of that name.")
        return
    one = rows.to_dicts()[0]
    st.markdown(
        f"**Cause.** {escape.markdown(one['reason'])}. {_WHAT[one['action']]} Device "
        f"{escape.markdown(one['device_id'] or 'unknown')}, {words.when(one['event_time'])}."
    )
    cards = [*_PHASES[one["action"]](one), *(() if one["action"] == "yield" else _work(one))]
    for column, (label, value) in zip(st.columns(len(cards)), cards, strict=True):
        column.metric(label, value)
    about = f"{reaction.ABOUT} " if one["action"] == "revoke" else ""
    st.caption(
        f"{about}Source: `preemption` {escape.markdown(one['writer'])}, number {one['seq']:,}, {run.provenances[0]}. "
        "The lease is below."
    )
    if one["action"] != "yield":
        _moved(ledger, run, one["lease_id"])
    st.button("Close the preemption", on_click=_close)


#: What each action is, as a sentence.
_WHAT: Mapping[str, str] = {
    "yield": "Rollout steps waited between layers.",
    "cut": "The lease's memory was reduced.",
    "revoke": "The whole lease ended.",
}


def _yield(one: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("Times in that second", f"{one['times']:,}"),
        ("Off the device, longest", reaction.text(one["off_device_ms"])),
        ("Off the device, mean", reaction.text(one["off_device_mean_ms"])),
        ("Rollouts waited, together", reaction.text(one["duration_ms"])),
        ("Rollouts waited, longest", reaction.text(one["longest_ms"])),
    ]


def _cut(one: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("Memory free after", reaction.text(one["duration_ms"])),
        ("Budget before", _mb(one["kv_budget_bytes_before"])),
        ("Budget after", _mb(one["kv_budget_bytes_after"])),
        ("Returned to the system", _mb(one["returned_bytes"])),
    ]


def _revoke(one: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        *reaction.cards(one["off_device_ms"], one["closed_after_ms"]),
        ("Budget before", _mb(one["kv_budget_bytes_before"])),
    ]


_PHASES = {"yield": _yield, "cut": _cut, "revoke": _revoke}


def _work(one: Mapping[str, Any]) -> list[tuple[str, str]]:
    named = (("Requests moved", "requests"), ("Tokens kept", "tokens_kept"), ("Tokens lost", "tokens_lost"))
    return [(label, "unknown" if one[name] is None else f"{one[name]:,}") for label, name in named]


def _moved(ledger: Path, run: Run, lease_id: str | None) -> None:
    turns = None if lease_id is None else data.of_part(ledger, "dashboard/preemptions/moved", run, lease_id)
    if turns is None or turns.is_empty():
        st.caption("No turn of this lease is recorded as cut by a preemption.")
        return
    count = int(turns["turns"][0])
    which = "all" if turns.height == count else f"{turns.height:,} of {count:,}"
    frame.table(
        turns.drop("turns").with_columns(pl.col("waited_ms").round(3)),
        f"`turn`, {which} that preemptions of this lease cut, and where each went on; {run.provenances[0]}.",
    )


def _mb(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 1e6:,.0f} MB"


def _pick(rows: pl.DataFrame) -> None:
    chosen = st.session_state[_TABLE]["selection"]["rows"]
    one = rows.row(chosen[0], named=True) if chosen else {}
    bar.pick(preemption=one.get("event_id"), lease=one.get("lease_id"))


def _pick_action() -> None:
    action = st.session_state[_ACTION]
    bar.pick(action=action if action in ACTIONS else None)


def _close() -> None:
    bar.pick(preemption=None, lease=None)
