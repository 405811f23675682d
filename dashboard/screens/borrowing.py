"""Whether borrowing is worth it: what it saved, and why it costs what it costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import streamlit as st

from dashboard import charts, data, display, escape, frame
from dashboard import format as words
from dashboard.data import Run
from rose.pricing.borrowing import report
from rose.pricing.borrowing.report import CASH
from rose.pricing.borrowing.waterfall import TOKENS, waterfall
from rose.pricing.figures import Stamp
from rose.pricing.run.priced import PricedRun
from rose.pricing.table import Section

_SOURCE = "charges, `lease`, `turn`, `verdict`, `request`, `power` and the price book"


def answers(run: PricedRun) -> dict[str, Section]:
    """Return every answer on the borrowing of a run, by name."""
    return {"waterfall": waterfall(run), **report.sections(run)}


def show(ledger: Path, run: Run) -> None:
    with st.spinner("Comparing with other ways to the same tokens …"):
        answer = frame.value_of(data.of_run(ledger, run, answers))
    if answer is None:
        return
    sections, stamp = answer
    frame.stamp(stamp)
    _verdict(sections["risk"], sections["compare"])
    st.header("What did borrowing save?")
    frame.show(sections["compare"], _SOURCE, folded=("device_time", "how", "multiplier"))
    _why(sections["waterfall"], stamp)
    st.header("Did lending make serving late?")
    frame.show(sections["risk"], _SOURCE, skip=("saves",))
    st.header("What did borrowing add to the bill?")
    frame.show(sections["price"], _SOURCE)
    st.header("What may a later burst cost?")
    st.markdown(
        "Load that rises while a device is lent can make serving late. The expected cost is accrued during lending, "
        "and set against what it came to."
    )
    frame.show(sections["provision"], _SOURCE, folded=("days",))
    st.header("And if load and demand rose together?")
    st.warning("**SIMULATED.** The run's own hours are paired anew: this did not happen.")
    frame.show(sections["spikes"], "the windows of the run, paired anew: simulated")


def _verdict(risk: Section, compare: Section) -> None:
    """A success or a failure only where the interval lies on one side of 0."""
    saved = compare.figure("savings", CASH)
    judged: Callable[[str], object] = st.info
    if saved.low is not None and saved.high is not None:
        judged = st.success if saved.low >= 0 < saved.high else st.error if saved.high <= 0 else st.info
    judged(escape.prose(risk.text("saves")))


def _why(steps: Section, stamp: Stamp) -> None:
    st.header("Why does a borrowed rollout cost what it costs?")
    if "missing" in steps.parts:
        st.info(escape.prose(steps.text("missing")))
        return
    table = steps.table("steps")
    drawn = [
        (
            name.replace("_", " "),
            None if figure.value is None else int(figure.value),
            number in table.marks,
            escape.cell(why),
        )
        for number, (name, figure, why) in enumerate(table.rows)
    ]
    title = f"{stamp.currency} for {steps.figure('tokens', TOKENS).text} useful tokens made on borrowed devices"
    display.chart(charts.waterfall(drawn, stamp.currency, title), about="From dedicated devices to the marginal cost")
    st.caption(
        words.plain(
            "From what dedicated devices would cost (hypothetical) to what lending added to the bill (marginal). A "
            f"part that is not known has no bar. {stamp}."
        )
    )
    frame.show(steps, _SOURCE, skip=("tokens",), folded=("steps",))


frame.page(
    "Borrowing",
    "Is borrowing worth it? Marginal figures are for deciding: they are on no bill.",
    show,
    live_s=frame.QUIET_S,
)
