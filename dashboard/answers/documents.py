"""What pricing says of a run's answers: costs, levers, frontier and verifiers, all of one pricing of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dashboard import data
from dashboard.data import Priced
from rose.ledger.examine import Seen
from rose.pricing.answers.report.cost_per_correct import Answers, answers
from rose.pricing.answers.report.frontier import Outlook, outlook
from rose.pricing.answers.report.verifiers import Procurement, procurement
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.run.priced import priced


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """`verifiers` has an error where no verdict's truth is known; `useful` are useful rollout tokens."""

    answers: Answers
    ahead: Outlook
    verifiers: Priced[Procurement]
    useful: int


def build(root: Path, run_id: str, book: PriceBook, unverified: bool, seen: Seen) -> Documents:
    """The documents of a run. Raises what `rose.pricing.run.priced.priced` raises."""
    with priced(root, run_id, book, unverified, seen) as run:
        return Documents(
            answers=answers(run),
            ahead=outlook(run),
            verifiers=data.attempt(lambda: procurement(run)),
            useful=run.cost.useful,
        )
