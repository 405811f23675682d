"""Whether borrowing harms serving, and whether it really saves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from dashboard import data, escape, frame
from dashboard import format as words
from dashboard.data import Priced, Run
from dashboard.risk import sections, serving
from rose.pricing.borrowing import report
from rose.pricing.borrowing.report import risk
from rose.pricing.figures import Stamp
from rose.pricing.table import Section


def show(ledger: Path, run: Run) -> None:
    book = data.price_book(ledger, run)
    if book.value is None:
        _harm_alone(ledger, run)
        serving.without_prices(book.error or words.NOT_ENOUGH_DATA)
        return

    def ask(unverified: bool) -> Priced[tuple[Mapping[str, Section], Stamp]]:
        return data.answer(ledger, run, report.sections, unverified=unverified)

    answer = frame.asked(ledger, ask, f"risk-{run.run_id}")
    if answer is None:
        if data.verifies(ledger):
            _harm_alone(ledger, run)
        return
    made, stamp = answer
    frame.stamp(stamp)
    sections.verdicts(made)
    sections.harm(made)
    serving.show(ledger, run)
    sections.saved(made["compare"])
    sections.depends(made)
    sections.added(made["price"])
    sections.bursts(made["provision"])
    sections.together(made["spikes"])


def _harm_alone(ledger: Path, run: Run) -> None:
    """What lending does to serving, which takes no prices."""
    measured = data.kept(lambda: risk.without_prices(ledger, run.run_id), ledger, "harm", run.run_id)
    if measured.value is None:
        st.error(escape.prose(measured.error or words.NOT_ENOUGH_DATA))
        return
    harmful = risk.harmful(measured.value)
    sections.told(harmful)(escape.prose(risk.says(measured.value)))
    sections.not_told(harmful)
    sections.windows(f"{measured.value.withheld:,}", f"{measured.value.windows:,}", run.provenances[0])
    serving.show(ledger, run)


frame.page(
    "Risk",
    "Does borrowing harm serving, and does it really save? Marginal figures are for deciding: they are no bill.",
    show,
    live_s=frame.QUIET_S,
)
