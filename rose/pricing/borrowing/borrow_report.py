"""The report on the borrow of one run."""

from collections.abc import Callable, Mapping

from rose.pricing.borrowing.comparison import comparison
from rose.pricing.borrowing.marginal_tables import price
from rose.pricing.borrowing.provision import provision
from rose.pricing.borrowing.risk import risk
from rose.pricing.borrowing.spikes import spikes
from rose.pricing.run.priced import PricedRun
from rose.pricing.table import Section

QUESTIONS: Mapping[str, Callable[[PricedRun], Section]] = {
    "risk": risk,
    "price": price,
    "provision": provision,
    "compare": comparison,
    "spikes": spikes,
}


def sections(run: PricedRun, only: str | None = None) -> dict[str, Section]:
    return {name: answer(run) for name, answer in QUESTIONS.items() if only in (None, name)}
