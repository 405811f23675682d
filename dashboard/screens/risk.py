"""Whether borrowing harms serving, and whether it really saves."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard import data, escape, frame
from dashboard import format as words
from dashboard.data import Priced, Run
from dashboard.risk import sections, serving
from rose.pricing.borrowing.report import risk
from rose.pricing.borrowing.report.risk import RiskDocument
from rose.pricing.price_books.pricebook import PriceBook

_PRICED = (sections.saved, sections.depends, sections.added, sections.bursts, sections.together)


def show(ledger: Path, run: Run) -> None:
    book = data.price_book(ledger, run)
    if book.value is None:
        _harm_alone(ledger, run)
        serving.without_prices(book.error or words.NOT_ENOUGH_DATA)
        return
    document = _document(ledger, run, book.value)
    if document is None:
        if data.verifies(ledger):
            _harm_alone(ledger, run)
        return
    frame.stamp(document.head.stamp)
    sections.verdicts(document)
    sections.harm(document)
    serving.show(ledger, run)
    for section in _PRICED:
        section(document)


def _harm_alone(ledger: Path, run: Run) -> None:
    """What lending does to serving, which takes no prices."""
    measured = data.kept(lambda: risk.without_prices(ledger, run.run_id), ledger, "harm", run.run_id)
    if measured.value is None:
        st.error(escape.prose(measured.error or words.NOT_ENOUGH_DATA))
        return
    sections.told(measured.value.told)(escape.prose(measured.value.says))
    sections.not_told(measured.value.told)
    sections.windows(f"{measured.value.withheld:,}", f"{measured.value.windows:,}", run.provenances[0])
    serving.show(ledger, run)


def _document(ledger: Path, run: Run, book: PriceBook) -> RiskDocument | None:
    def ask(unverified: bool) -> Priced[RiskDocument]:
        return data.kept(
            lambda: risk.build(ledger, run.run_id, book, unverified, seen=data.seen(str(ledger))),
            ledger,
            "risk",
            run.run_id,
            *data.book_key(book),
            unverified,
        )

    return frame.asked(ledger, ask, f"risk-{run.run_id}")


frame.page(
    "Risk",
    "Does borrowing harm serving, and does it really save? Marginal figures are for deciding: they are no bill.",
    show,
    live_s=frame.QUIET_S,
)
