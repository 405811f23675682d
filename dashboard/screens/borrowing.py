"""Whether borrowing is worth it: what it saved, and what that depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import charts, data, display, escape, frame
from dashboard.data import Priced, Run
from rose.pricing.borrowing import report
from rose.pricing.borrowing.report import CASH
from rose.pricing.borrowing.savings import LOADED, NOTHING
from rose.pricing.figures import Figure, Stamp
from rose.pricing.table import Section

_SOURCE = "charges, `lease`, `turn`, `verdict`, `request`, `power` and the price book"


def show(ledger: Path, run: Run) -> None:
    def ask(unverified: bool) -> Priced[tuple[dict[str, Section], Stamp]]:
        return data.of_run(ledger, run, report.sections, unverified=unverified)

    with st.spinner("Comparing with other ways to the same tokens …"):
        answer = frame.priced(ledger, ask, f"borrowing-{run.run_id}")
    if answer is None:
        return
    sections, stamp = answer
    frame.stamp(stamp)
    _verdict(sections["risk"], sections["compare"])
    _saved(sections["compare"])
    _depends(sections["risk"])
    st.header("Did lending make serving late?")
    frame.show(sections["risk"], _SOURCE, skip=("saves", "depends"))
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


def _saved(compare: Section) -> None:
    st.header("What did borrowing save?")
    ways: Mapping[str, Figure] = {
        name: figure for name, figure, *_ in _amounts(compare) if name not in (NOTHING, LOADED)
    }
    if any(figure.value is not None for figure in ways.values()):
        currency = next(iter(ways.values())).stamp.currency
        title = f"cash saved against it ({currency}, marginal), 95% interval"
        display.chart(charts.intervals(ways, title), about=title)
    frame.show(compare, _SOURCE, folded=("device_time", "how", "multiplier"))


def _amounts(compare: Section) -> list[tuple[str, Figure]]:
    """Each other way to the same tokens, with the cash that borrowing saved against it."""
    return [(str(name), figure) for name, _, figure in compare.table("bill").rows]


def _depends(risk: Section) -> None:
    st.header("What does that depend on?")
    if "depends" not in risk.parts:
        st.info("Nothing that it rests on has a range in this run.")
        return
    table = risk.table("depends")
    now: Figure = table.rows[0][2]
    rows = [
        {"name": str(name), "end": end, "value": figure.value / 1e9, "text": figure.text}
        for name, worse, _, better in table.rows
        for end, figure in (("worse", worse), ("better", better))
        if figure.value is not None
    ]
    if rows and now.value is not None:
        display.chart(
            charts.depends(pl.DataFrame(rows), now.value / 1e9, now.stamp.currency),
            about="Cash saved at either end of the range of each thing that it depends on",
        )
    frame.pricing_table(table, _SOURCE)


frame.page(
    "Borrowing",
    "Is borrowing worth it? Marginal figures are for deciding: they are on no bill.",
    show,
    live_s=frame.QUIET_S,
)
