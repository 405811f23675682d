"""Whether the rollouts taught the model anything, and what an accepted answer cost along the way."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import charts, data, escape, frame
from dashboard import format as words
from dashboard.data import Run

_BLUE, _GREEN, _ORANGE, _PURPLE = "#0072B2", "#009E73", "#B87A00", "#8E4585"


def show(ledger: Path, run: Run) -> None:
    steps = data.rows(ledger, "dashboard/learning", run)
    if steps.is_empty():
        st.info("No training step has made anything yet.")
        return
    origin = f"{run.provenances[0].capitalize()}."
    left, right = st.columns(2)
    with left:
        st.header("Is it getting better?")
        _chart(steps, "alpha", "share accepted (alpha)", _BLUE, "%")
        st.caption(f"alpha: the share of judged answers the verifier accepted. {origin} Source: `verdict`.")
    with right:
        st.header("What does an accepted answer cost?")
        _cost(ledger, run, steps)
    left, right = st.columns(2)
    with left:
        st.header("What is the reward?")
        _chart(steps, "reward", "mean reward", _GREEN, ".3~f")
        st.caption(f"The verifier's mean reward in each step. {origin} Source: `verdict`.")
    with right:
        st.header("How many tokens did it take?")
        _chart(steps, "tokens", "rollout tokens", _ORANGE, "~s")
        st.caption(f"Tokens the rollouts of each step generated, useful or not. {origin} Source: `turn`.")
    left, right = st.columns(2)
    with left:
        st.header("How old were the samples?")
        _chart(steps, "staleness_mean", "mean staleness (versions)", _PURPLE, ".2~f")
        st.caption(
            f"Staleness: by how many policy versions a sample trails the trainer. {origin} Source: `trajectory`."
        )
    with right:
        st.header("How long did a step take?")
        _chart(steps.with_columns(total=pl.sum_horizontal("rollout_s", "train_s", "sync_s", ignore_nulls=False)),
               "total", "seconds", _BLUE, ".3~s")  # fmt: skip
        st.caption(f"Rollout, update and publishing new weights together. {origin} Source: `step`.")
    st.header("Step by step")
    frame.table(steps, f"`verdict`, `turn`, `trajectory`, `step`; the newest 1,000 steps. {origin}")


def _chart(steps: pl.DataFrame, field: str, title: str, colour: str, axis_format: str) -> None:
    if steps[field].drop_nulls().is_empty():
        st.info("Not enough data yet.")
        return
    st.altair_chart(charts.by_step(steps, field, title, colour, axis_format), width="stretch", alt=f"{title} by step")


def _cost(ledger: Path, run: Run, steps: pl.DataFrame) -> None:
    report = frame.priced(ledger, run)
    if report is None:
        return
    price = report.cost_per_correct["blended"].token_cost
    if price.value is None:
        st.info(escape.markdown(price.why or words.NOT_ENOUGH_DATA))
        return
    _chart(data.cost_by_step(report, steps), "usd", f"{report.stamp.currency} per accepted answer", _ORANGE, "$.3~g")
    st.caption(
        f"The run's rollout dollars ({price.view}), divided among steps by their tokens, over accepted answers; "
        f"{report.stamp}. A step with none has no point. Source: `turn`, `verdict`, `device_slice`, price book."
    )


frame.page("Cost per correct", "Did the rollouts teach the model anything, and what did an accepted answer cost?", show)
