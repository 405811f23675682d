"""Savings of borrowing, and what they depend on."""

import streamlit as st

from dashboard import data, escape, frame
from dashboard.data import Run
from rose.ledger.ledger import Ledger
from rose.pricing.borrowing import borrow_report
from rose.pricing.borrowing.comparison import CASH
from rose.pricing.stats.verdict import exceeds
from rose.pricing.table import Section

_SOURCE = "charges, `lease`, `turn`, `verdict`, `request`, `power` and the price book"


def show(ledger: Ledger, run: Run) -> None:
    with st.spinner("Comparing with other ways to the same tokens …"):
        sections, stamp = data.of_run(ledger, run, borrow_report.sections)
    frame.stamp(stamp)
    _verdict(sections["risk"], sections["compare"])
    st.header("What did borrowing save?")
    frame.show(sections["compare"], _SOURCE, skip=("says",), folded=("device_time", "how", "multiplier"))
    st.header("Did lending make serving late?")
    frame.show(sections["risk"], _SOURCE, skip=("saves",))
    st.header("What did borrowing add to the bill?")
    frame.show(sections["price"], _SOURCE)
    st.header("What may a later burst cost?")
    st.markdown(
        "Load that rises while a device is lent can make serving late. Its expected cost is accrued during lending and "
        "compared with the actual cost."
    )
    frame.show(sections["provision"], _SOURCE, folded=("days",))
    st.header("And if load and demand rose together?")
    st.warning("**SIMULATED.** The run's own hours in another pairing: this did not happen.")
    frame.show(sections["spikes"], "the run's windows in another pairing: simulated", folded=("windows",))


def _verdict(risk: Section, compare: Section) -> None:
    saved = compare.figure("savings", CASH)
    frame.verdict(None if saved.low is None else exceeds(saved.low, saved.high), escape.prose(risk.text("saves")))


frame.page(
    "Borrowing",
    "Is borrowing worth it? Marginal figures are for deciding: they are on no bill.",
    show,
    live_s=frame.QUIET_S,
)
