"""Whether borrowing harms serving, and whether it really saves."""

from __future__ import annotations

from pathlib import Path

from dashboard import data, frame
from dashboard.data import Priced, Run
from dashboard.risk import sections
from rose.pricing.borrowing.report import risk
from rose.pricing.borrowing.report.risk import RiskDocument

_EVIDENCE = (
    sections.harm, sections.saved, sections.depends, sections.added, sections.bursts, sections.together,
)  # fmt: skip


def show(ledger: Path, run: Run) -> None:
    document = _document(ledger, run)
    if document is None:
        return
    frame.stamp(document.head.stamp)
    sections.verdicts(document)
    for section in _EVIDENCE:
        section(document)


def _document(ledger: Path, run: Run) -> RiskDocument | None:
    chosen = data.price_book(ledger, run)

    def ask(unverified: bool) -> Priced[RiskDocument]:
        if (book := chosen.value) is None:
            return Priced(None, chosen.error)
        return data.kept(
            lambda: risk.build(ledger, run.run_id, book, unverified, seen=data.seen(str(ledger))),
            ledger, "risk", run.run_id, *data.book_key(book), unverified,
        )  # fmt: skip

    return frame.asked(ledger, ask, f"risk-{run.run_id}")


frame.page(
    "Risk",
    "Does borrowing harm serving, and does it really save? Marginal figures are for deciding: they are no bill.",
    show,
    live_s=frame.QUIET_S,
)
