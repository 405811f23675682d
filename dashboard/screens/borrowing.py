"""The savings of borrowing, and what they depend on."""

import streamlit as st

from dashboard import data, escape, frame
from dashboard.data import Run
from rose.ledger.ledger import Ledger
from rose.pricing.borrowing import risk

_SOURCE = "charges, `lease`, `turn`, `verdict`, `request`, `power` and the price book"


def show(ledger: Ledger, run: Run) -> None:
    with st.spinner("Comparing with the alternatives …"):
        sections, stamp = data.of_run(ledger, run, risk.sections)
    frame.stamp(stamp)
    saves = sections["risk"].paragraph("saves")
    frame.verdict(saves.good, escape.prose(saves.text))
    st.header("What did borrowing save?")
    frame.show(sections["compare"], _SOURCE, skip=("says",), folded=("device_time", "how", "multiplier"))
    st.header("Did lending make serving late?")
    frame.show(sections["risk"], _SOURCE, skip=("saves",))
    st.header("What did borrowing add to the bill?")
    frame.show(sections["price"], _SOURCE)
    st.header("What may a later burst cost?")
    st.markdown(
        "Load that rises while a device is lent can make serving late. The expected cost of this is accrued during "
        "lending and compared with the actual cost."
    )
    frame.show(sections["provision"], _SOURCE, folded=("days",))
    st.header("And if load and demand rose together?")
    st.warning("**SIMULATED.** The load of each hour is paired with the demand of other hours: this did not happen.")
    frame.show(sections["spikes"], "the run's windows in new pairs: simulated", folded=("windows",))


frame.page(
    "Borrowing",
    "Was borrowing worth it in one run? The Overview has the whole period. Marginal figures are for deciding: no "
    "bill has a line for them.",
    show,
    live_s=frame.QUIET_S,
)
