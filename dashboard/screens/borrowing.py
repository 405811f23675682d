"""Whether borrowing is worth it: what it saved, why it costs what it costs, and what that depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import charts, data, display, escape, frame
from dashboard import format as words
from dashboard.data import Priced, Run
from rose.pricing.borrowing import report
from rose.pricing.borrowing.report import CASH
from rose.pricing.borrowing.savings import LOADED, NOTHING
from rose.pricing.borrowing.waterfall import TOKENS, waterfall
from rose.pricing.figures import Figure, Stamp
from rose.pricing.run.priced import PricedRun
from rose.pricing.table import Section

_SOURCE = "charges, `lease`, `turn`, `verdict`, `request`, `power` and the price book"


def answers(run: PricedRun) -> dict[str, Section]:
    """Return every answer on the borrowing of a run, by name."""
    return {"waterfall": waterfall(run), **report.sections(run)}


def show(ledger: Path, run: Run) -> None:
    def ask(unverified: bool) -> Priced[tuple[dict[str, Section], Stamp]]:
        return data.of_run(ledger, run, answers, unverified=unverified)

    with st.spinner("Comparing with other ways to the same tokens …"):
        answer = frame.priced(ledger, ask, f"borrowing-{run.run_id}")
    if answer is None:
        return
    sections, stamp = answer
    frame.stamp(stamp)
    _verdict(sections["risk"], sections["compare"])
    _saved(sections["compare"])
    _why(sections["waterfall"], stamp)
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
