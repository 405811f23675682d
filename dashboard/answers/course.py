"""Whether the policy learned: a sentence, and the share of accepted answers over steps or policy versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import bar, data, display, frame, link
from dashboard.answers import charts
from dashboard.data import Run
from rose.pricing.answers import learned
from rose.pricing.answers.learned import Learned, Stretch

_AXIS = "answers-axis"
#: What a stretch is of, by how the address calls the axis: as pricing calls it, one of them, and the axis' title.
_AXES = {link.STEPS: ("step", "step", "RL step"), link.VERSIONS: ("version", "version", "policy version")}
_MEANING = {
    "learned": "**The policy learned.**",
    "got worse": "**The policy got worse.**",
    "cannot tell": "**Whether the policy learned cannot be told**: the intervals of its beginning and its end overlap.",
}


def show(ledger: Path, run: Run) -> None:
    """The section, from verdicts alone: it needs no prices."""
    by_step = _course(ledger, run, link.STEPS)
    st.markdown(sentence(learned.learned(by_step), by_step))
    st.header("Is it getting better?")
    axis = bar.chosen().axis
    st.session_state[_AXIS] = axis
    st.radio(
        "Over",
        list(_AXES),
        key=_AXIS,
        format_func=lambda name: _AXES[name][2] + "s",
        horizontal=True,
        on_change=lambda: bar.pick(axis=st.session_state[_AXIS]),
    )
    course = by_step if axis == link.STEPS else _course(ledger, run, axis)
    if not course:
        st.info("No answer was judged yet." if axis == link.STEPS else "No judged answer names its policy version.")
        return
    shown = rows(course)
    display.chart(charts.shares(shown, _AXES[axis][2]), about="Share of judged answers accepted")
    whole, drawn = (sum(stretch.judged for stretch in stretches) for stretches in (by_step, course))
    wide = any(stretch.last > stretch.first for stretch in course)
    left_out = (
        f" {whole - drawn:,} of {whole:,} judged answers name no version, and are left out." if drawn < whole else ""
    )
    st.caption(
        "The share of judged answers that the verifier accepted, with its 95% interval: Wilson's, a group counting as "
        f"one cluster.{f' A point is of several {_AXES[axis][1]}s; its tooltip says which.' if wide else ''}{left_out} "
        f"{run.provenances[0].capitalize()}. Source: `verdict`"
        + (", `trajectory`: the oldest version that made one of its tokens." if axis == link.VERSIONS else ".")
    )
    frame.download(shown.drop("text"), f"accepted by {axis}")


def sentence(found: Learned | None, course: Sequence[Stretch]) -> str:
    """What the two ends of a run say, in Markdown."""
    if found is None:
        return "**Whether the policy learned cannot be told**: it takes two steps with judged answers, and there " + (
            "is one." if course else "are none."
        )
    steps = course[-1].last - course[0].first + 1
    return (
        f"{_MEANING[found.verdict]} {found.end.text} of the judged answers were accepted in the last "
        f"{_steps(found.end)} of {steps:,}, against {found.begin.text} in the first {_steps(found.begin)}."
    )


def rows(course: Sequence[Stretch]) -> pl.DataFrame:
    """Points of the chart, each in the middle of its stretch, with its counts."""
    return pl.DataFrame(
        [
            {
                "place": (stretch.first + stretch.last) / 2,
                "first": stretch.first,
                "last": stretch.last,
                "named": f"{stretch.first:,}" + ("" if stretch.first == stretch.last else f" to {stretch.last:,}"),
                "judged": stretch.judged,
                "accepted": stretch.accepted,
                "groups": stretch.groups,
                "share": float(stretch.share),
                "low": stretch.interval[0],
                "high": stretch.interval[1],
                "text": stretch.text,
            }
            for stretch in course
        ]
    )


def _course(ledger: Path, run: Run, axis: str) -> list[Stretch]:
    return learned.stretches(data.in_blocks(ledger, "answers/accepted", run, _AXES[axis][0]).to_dicts())


def _steps(stretch: Stretch) -> str:
    count = stretch.last - stretch.first + 1
    return "step" if count == 1 else f"{count:,} steps"
