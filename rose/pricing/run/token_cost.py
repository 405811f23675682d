"""What a useful rollout token cost, on each price line, and how well that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.charges.allocation import Allocation
from rose.pricing.money import NANO_USD_PER_USD
from rose.pricing.run.token_spread import UNKNOWN, Spread
from rose.pricing.run.tokens import Tokens
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats
from rose.pricing.stats.uncertainty import Estimate

#: What a rollout token is priced at: serving's amortized price, a dedicated device's, the borrow's marginal price, and
#: the mix that was used.
LINES: tuple[str, ...] = ("serving", "dedicated", "opportunistic", "blended")


#: Of the draws of m; those of the tokens' prices have seeds of their own.
_SEED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCost:
    """Exact dollars per useful token on each line, and phi, the borrowed share of useful tokens."""

    by_line: Mapping[str, Fraction | None]
    #: Dollars really paid for rollouts by where they ran: `borrowed` at the marginal price (with avoidable device time
    #: where the idle-anyway gate does not hold), `dedicated` at the amortized one.
    paid: Mapping[str, Fraction]
    borrowed_share: Fraction | None
    useful: int
    #: What the borrow was charged, with its interval; None where none can be given, and `no_borrow_interval` says why.
    borrow: Estimate | None
    no_borrow_interval: str | None
    #: How well a token's price is known, by placement; one that is not known is left out.
    spreads: Mapping[str, Spread]

    def pi(self, line: str) -> Fraction | None:
        """Price of a rollout token on a line over serving's own; None where either is unknown."""
        cost, serving = self.by_line[line], self.by_line["serving"]
        return cost / serving if cost is not None and serving else None

    def no_interval(self, line: str) -> str | None:
        """Why what rests on the line's price has no interval; None where it may have one."""
        places = {"serving": ["borrowed"], "dedicated": ["dedicated"], "opportunistic": ["borrowed"]}.get(line)
        places = places or [place for place, part in self._parts.items() if part]
        if line in ("opportunistic", "blended") and "borrowed" in places and self.borrow is None:
            return self.no_borrow_interval
        return None if all(place in self.spreads for place in places) else UNKNOWN

    def price_draws(self, line: str) -> dict[str, Floats]:
        """Dollars that a useful token of each placement may really cost on a line, one for each resample.

        Only where `no_interval` is None.
        """
        factor = {
            place: self.spreads[place].draws(seed) if place in self.spreads else np.ones(bootstrap.RESAMPLES)
            for seed, place in enumerate(("borrowed", "dedicated"), start=1)
        }
        if line in ("serving", "dedicated"):
            place = "borrowed" if line == "serving" else "dedicated"
            return dict.fromkeys(factor, float(self.by_line[line] or 0) * factor[place])
        marginal = np.zeros(bootstrap.RESAMPLES)
        if self.borrow is not None and (useful := self.useful * float(self.borrowed_share or 0)):
            off = self.borrow.draws(_SEED) - self.borrow.value
            marginal = float(self.by_line["opportunistic"] or 0) * factor["borrowed"] + off / useful
        dedicated = float(self.by_line["dedicated"] or 0) * factor["dedicated"]
        return {"borrowed": marginal, "dedicated": marginal if line == "opportunistic" else dedicated}

    @property
    def _parts(self) -> dict[str, Fraction]:
        """Share of the useful tokens of each placement."""
        borrowed = self.borrowed_share or Fraction(0)
        return {"borrowed": borrowed, "dedicated": 1 - borrowed}


def token_cost(
    allocation: Allocation, tokens: Mapping[str, Tokens], borrow: Marginal, spreads: Mapping[str, Spread]
) -> TokenCost:
    """[D] c = p / (tau * (1 - w)) on each line, which is a placement's rollout dollars over its useful tokens.

    `serving` prices the borrowed device-seconds at their amortized price, `opportunistic` at the marginal one, with the
    device time that the borrow kept from being avoided where the idle-anyway gate does not hold. `blended` is what was
    really paid.
    """
    borrowed, dedicated = tokens["borrowed"], tokens["dedicated"]
    serving_usd = rollout_usd(allocation.in_pools("serving"))
    dedicated_usd = rollout_usd(allocation.in_pools("rollout", "train"))
    borrow_usd = borrow.charged_usd
    useful = borrowed.useful + dedicated.useful
    return TokenCost(
        by_line={
            "serving": _over(serving_usd, borrowed.useful),
            "dedicated": _over(dedicated_usd, dedicated.useful),
            "opportunistic": _over(borrow_usd, borrowed.useful),
            "blended": _over(borrow_usd + dedicated_usd, useful),
        },
        paid={"borrowed": borrow_usd, "dedicated": dedicated_usd},
        borrowed_share=_over(Fraction(borrowed.useful), useful),
        useful=useful,
        borrow=borrow.charged_estimate,
        no_borrow_interval=borrow.no_interval,
        spreads=spreads,
    )


def rollout_usd(allocation: Allocation) -> Fraction:
    """Amortized dollars of rollout work on these devices."""
    return Fraction(allocation.amortized_nano_usd()["rollout"], NANO_USD_PER_USD)


def _over(numerator: Fraction, denominator: int) -> Fraction | None:
    return numerator / denominator if denominator else None
