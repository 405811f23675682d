"""Whether the policy learned, what a correct answer cost, and what would make it cheaper."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import charts, data, display, frame
from dashboard.answers import course, decide, prices
from dashboard.data import Priced, Run
from rose.pricing.answers import report
from rose.pricing.figures import Stamp
from rose.pricing.table import Section

_BLUE, _GREEN, _ORANGE, _PURPLE = "#0072B2", "#009E73", "#B87A00", "#8E4585"
#: Charts of how the run went stand below the others, and are smaller.
_HEIGHT_PX = 200


def show(ledger: Path, run: Run) -> None:
    steps = data.in_blocks(ledger, "dashboard/learning", run)
    if steps.is_empty():
        st.info("No training step has made anything yet.")
        return
    course.show(ledger, run)

    def ask(unverified: bool) -> Priced[tuple[dict[str, Section], Stamp]]:
        return data.answer(ledger, run, report.sections, unverified=unverified)

    # Prices take longest: what needs none is drawn meanwhile, below their place.
    place = st.container()
    _went(run, steps)
    with place:
        with st.spinner("Pricing the run …"):
            answer = frame.asked(ledger, ask, f"answers-{run.run_id}")
        if answer is None:
            return
        made, stamp = answer
        frame.stamp(stamp)
        prices.show(made["cost"], steps)
        decide.levers(made["cost"])
        decide.frontier(made["frontier"])
        decide.verifiers(made["verifiers"])


def _went(run: Run, steps: pl.DataFrame) -> None:
    """How the steps went: reward, tokens, age of samples, time."""
    st.header("How did the run go?")
    origin = f"{run.provenances[0].capitalize()}."
    with_time = steps.with_columns(seconds=pl.sum_horizontal("rollout_s", "train_s", "sync_s", ignore_nulls=False))
    drawn = (
        ("reward", "reward", _GREEN, ".3~f", "The verifier's mean reward. Source: `verdict`."),
        ("tokens", "tokens", _ORANGE, "~s", "Tokens that rollouts generated, useful or not. Source: `turn`."),
        (
            "staleness_mean",
            "versions",
            _PURPLE,
            ".2~f",
            "Mean staleness: by how many policy versions a sample trails the trainer. Source: `trajectory`.",
        ),
        (
            "seconds",
            "seconds",
            _BLUE,
            ".3~s",
            "A step: rollout, update and publishing new weights together. Source: `step`.",
        ),
    )
    places = [place for _ in range(2) for place in st.columns(2)]
    for place, (field, title, colour, axis_format, about) in zip(places, drawn, strict=True):
        with place:
            _chart(with_time, field, title, colour, axis_format)
            st.caption(f"{about} {origin}")
    wide = (steps["last_step"] > steps["step"]).any()
    several = " A row is of several steps, `step` to `last_step`: times, loss and entropy are means." if wide else ""
    frame.table(steps, f"`verdict`, `turn`, `trajectory`, `step`.{several} {origin}")


def _chart(steps: pl.DataFrame, field: str, title: str, colour: str, axis_format: str) -> None:
    if steps[field].drop_nulls().is_empty():
        st.info("Not enough data yet.")
        return
    chart = charts.by_step(steps, field, title, colour, axis_format).properties(height=_HEIGHT_PX)
    display.chart(chart, about=f"{title} by step")


frame.page(
    "Cost per correct",
    "Did the policy learn, what did a correct answer cost, and what would make it cheaper?",
    show,
    live_s=frame.QUIET_S,
    of_fleet=False,
)
