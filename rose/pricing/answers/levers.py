"""Says which factor ("lever") changes the cost of a correct answer (C3) most. docs/pricing.md has the formula and its
derivatives. Levers are ranked by the dollars that each saves if it becomes a tenth better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from rose.pricing import formulas
from rose.pricing.money import NANO_USD_PER_USD, format_usd
from rose.pricing.run.cost_per_correct import Groups, TokenCost
from rose.pricing.run.tokens import Tokens
from rose.pricing.stats import bootstrap

TENTH = 0.1

WORDS: dict[str, str] = {
    "alpha": "share of groups with an accepted answer",
    "cpm": "list price of a million tokens",
    "r": "output tokens for each answer token",
    "one_plus_rho": "rollouts for each answer",
    "phi": "share of rollout tokens made on borrowed devices",
    "waste": "share of rollout tokens that were wasted",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """The factors of C3. Each `c_*` is in dollars per useful token, `cpm` in dollars per million tokens."""

    cpm: float
    r: float
    one_plus_rho: float
    alpha: float
    phi: float
    waste: float
    c_serving: float
    c_dedicated: float
    c_opportunistic: float

    @property
    def pi(self) -> float:
        """Return the price of a rollout token, divided by the price of a serving token."""
        return formulas.rollout_price_ratio(self.c_serving, self.c_dedicated, self.c_opportunistic, self.phi)

    @property
    def cost(self) -> float:
        """Return C3 in dollars per million answer tokens."""
        return formulas.cost_correct(self.cpm, self.r, self.one_plus_rho - 1, self.alpha, self.pi)

    def moved(self, name: str, value: float) -> Factors:
        """Return the factors, with `name` set to `value`. A lower `waste` also lowers the prices of rollout tokens."""
        if name != "waste":
            return replace(self, **{name: value})
        cheaper = (1 - self.waste) / (1 - value)
        return replace(
            self, waste=value, c_dedicated=self.c_dedicated * cheaper, c_opportunistic=self.c_opportunistic * cheaper
        )

    def derivative(self, name: str) -> float:
        """Return the derivative of C3 by a factor, in dollars per million answer tokens for one unit of the factor."""
        cost, pi, rho = self.cost, self.pi, self.one_plus_rho - 1
        per_pi = self.cpm * self.r * rho / self.alpha
        return {
            "alpha": -cost / self.alpha,
            "cpm": self.r * (1 + pi * rho) / self.alpha,
            "r": cost / self.r,
            "one_plus_rho": cost * pi / (1 + pi * rho),
            "phi": per_pi * (self.c_opportunistic - self.c_dedicated) / self.c_serving,
            "waste": per_pi * pi / (1 - self.waste),
        }[name]


@dataclass(frozen=True, slots=True)
class Lever:
    """A factor of C3, the cost of a million answer tokens. `to` is a value that is a tenth better than `value`. At
    `to`, C3 would be `saves` dollars lower."""

    name: str
    value: float
    derivative: float
    elasticity: float
    to: float
    saves: float


def factors(cpm: float, cost: TokenCost, tokens: Mapping[str, Tokens], groups: Groups) -> Factors | None:
    """Return the factors of a run, or None if a factor is unknown or pi is below 0."""
    # Tokens on an unknown device have no price, and no part in the waste.
    known = [tokens["borrowed"], tokens["dedicated"]]
    pi, generated = cost.pi("blended"), sum(part.generated for part in known)
    if pi is None or pi < 0 or groups.r is None or groups.rho is None or not groups.alpha or not generated:
        return None
    return Factors(
        cpm=cpm,
        r=float(groups.r),
        one_plus_rho=float(groups.rho + 1),
        alpha=float(groups.alpha),
        phi=float(cost.borrowed_share or 0),
        waste=sum(part.wasted for part in known) / generated,
        **{f"c_{line}": float(cost.by_line[line] or 0) for line in ("serving", "dedicated", "opportunistic")},
    )


def levers(at: Factors) -> tuple[Lever, ...]:
    moves = []
    for name in WORDS:
        value, slope = getattr(at, name), at.derivative(name)
        low, high = {"cpm": (0, inf), "r": (1, inf), "one_plus_rho": (1, inf)}.get(name, (0, 1))  # Others are shares.
        to = min(max(value * (1 + TENTH if slope < 0 else 1 - TENTH), low), high)
        elasticity, saves = slope * value / at.cost if at.cost else 0.0, at.cost - at.moved(name, to).cost
        moves.append(Lever(name, value, slope, elasticity, to, bootstrap.rounded(saves)))
    return tuple(sorted(moves, key=lambda move: -move.saves))


def in_words(ranked: tuple[Lever, ...]) -> str:
    best = ranked[0].saves
    if best <= 0:
        return "No lever saves anything: every factor is at its limit, or the tokens are free."
    first = [lever for lever in ranked if round(lever.saves / best, 6) == 1]
    named = " or ".join(
        f"a tenth {'more of' if lever.derivative < 0 else 'off'} the {WORDS[lever.name]}" for lever in first
    )
    saves = format_usd(round(best * NANO_USD_PER_USD))
    text = f"{named[0].upper()}{named[1:]} saves {saves} on each million answer tokens, more than any other lever."
    dear = next(lever for lever in ranked if lever.name == "phi")
    if dear.derivative > 0:
        text += " Borrowing more would raise the cost: a borrowed token costs more than a dedicated one."
    return text
