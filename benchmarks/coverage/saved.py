"""Simulated comparisons: what borrowing saved, with m from simulated meters or assumed, and simulated tokens."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from benchmarks.coverage import groups, lending
from benchmarks.coverage.groups import Run
from benchmarks.coverage.shown import Shown, shown, within_range
from rose.pricing.borrowing import savings
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.savings import DEDICATED, LOADED, NOTHING, Alternative
from rose.pricing.run import token_spread

#: Dollars of m are of one lease schedule, those of tokens of one simulated run: this many dollars of tokens stand
#: beside one of m, so that both are felt.
SCALE = 6.0
OFFER, OFFER_RANGE = "market offer", (0.8, 1.5)


@functools.lru_cache(maxsize=1)
def expected() -> dict[str, float]:
    """What a group costs and brings on average, dollars, with borrowed tokens made elsewhere."""
    run, cost = groups.many()
    size = len(run.groups.each)
    dedicated = float(cost.by_line["dedicated"] or 0) * run.tokens["borrowed"].useful / size
    return {DEDICATED: dedicated, LOADED: 1.5 * dedicated, OFFER: 0.7 * dedicated, NOTHING: 0.0}


def ledger(
    random: np.random.Generator, run: Run, borrow: Marginal, m_usd: float, which: str, *, never: bool
) -> Iterator[Shown]:
    """What one run saved against every way; `m_usd` is what the borrow of such a run really costs."""
    usd = {place: run.ns[place] * price for place, price in groups.USD_PER_NS.items()}
    there = SCALE * usd["dedicated"] * run.tokens["borrowed"].useful / run.tokens["dedicated"].useful
    ways = [
        Alternative(
            name=name, usd=Fraction(share * there), basis="measured", explained="",
            follows="borrowed" if name == NOTHING else "dedicated", range=OFFER_RANGE if name == OFFER else (1.0, 1.0),
        )
        for name, share in ((DEDICATED, 1.0), (LOADED, 1.5), (OFFER, 0.7), (NOTHING, 0.0))
    ]  # fmt: skip
    prices = {(place, "simulated"): price for place, price in groups.USD_PER_NS.items()}
    spreads = token_spread.spreads(run.blocks, prices)
    for way in savings.saved(ways, borrow, run.groups, spreads):
        true = expected()[way.name] * SCALE * groups.GROUPS
        # The book's figure is a guess, and the truth lies where its range says.
        true *= within_range(random, *OFFER_RANGE) if way.name == OFFER else 1.0
        yield shown(f"saved against {way.name}: {which}", true - m_usd, way.interval, way.no_interval,
                    never=never)  # fmt: skip


def saved(random: np.random.Generator) -> Iterator[Shown]:
    """With m's energy metered or assumed, and with missed budgets at a price."""
    for which, stretches, prices, withheld in (
        ("energy metered", 6, lending.BOOK, True), ("energy assumed", 0, lending.BOOK, True),
        ("energy assumed, no range in the book", 0, lending.UNRANGED, True),
        ("energy metered for too short a time", 2, lending.BOOK, True),
        ("leases never withheld", 6, lending.BOOK, False),
    ):  # fmt: skip
        run = groups.simulate(random)
        # Leases last as long as there is work for them.
        work = run.ns["borrowed"] / groups.GROUPS / (groups.many()[0].ns["borrowed"] / groups.MANY)
        energy, energy_usd = lending.energy_term(random, stretches, prices, work)
        provision, provision_usd = lending.provision_term(random, work=work, withheld=withheld)
        borrow = lending.marginal(energy, provision)
        true = energy_usd * work + provision_usd
        never = stretches == 2 or not withheld or (not stretches and prices is lending.UNRANGED)
        yield shown(f"m: {which}", true, borrow.interval, borrow.no_interval, never=never)
        expected_usd = energy_usd + lending.expected_provision_usd()
        yield from ledger(random, run, borrow, expected_usd, which, never=never)
