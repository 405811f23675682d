"""What borrowing costs, question by question, as tables and sentences of one run of a ledger.

The same ledger and price book give the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rose.pricing.borrowing.scale_down import Span
    from rose.pricing.run.priced import PricedRun
    from rose.pricing.table import Section

#: The questions, in the order in which they are answered.
QUESTIONS = ("risk", "price", "provision", "compare", "spikes")


def sections(
    run: PricedRun,
    only: str | None = None,
    gave_back: Sequence[Span] = (),
    *,
    by_lease: bool = False,
    horizon_s: int = 10,
) -> dict[str, Section]:
    """Return the answers to QUESTIONS, or to one of them, by name.

    Raises PricingError for a span of a device that is no serving one, and a horizon that divides no day.
    """
    from rose.pricing.borrowing.report import alternatives, marginal, provision, risk, spikes

    answers: Mapping[str, Callable[[], Section]] = {
        "risk": lambda: risk.risk(run),
        "price": lambda: marginal.price(run, gave_back, by_lease=by_lease),
        "provision": lambda: provision.provision(run, by_lease=by_lease, horizon_s=horizon_s),
        "compare": lambda: alternatives.comparison(run, gave_back),
        "spikes": lambda: spikes.spikes(run),
    }
    return {name: answers[name]() for name in QUESTIONS if only in (None, name)}
