"""Which lever moves the cost of a correct answer most.

C3 = CPM * R * (1 + pi * rho) / alpha with pi = ((1 - phi) * c_D + phi * c_O) / c_S. For each factor, the others held:

- the derivative of C3. [A] at pi = 1 for alpha, CPM, R and 1 + rho; the rest [D]:
    d/d alpha = -C/alpha, d/d CPM = C/CPM, d/d R = C/R, d/d(1 + rho) = C * pi / (1 + pi * rho),
    d/d phi = CPM * R * rho / alpha * (c_O - c_D) / c_S,
    d/dw = CPM * R * rho / alpha * pi / (1 - w): rollout tokens cost 1 / (1 - w), and what serving's own cost is held;
- the elasticity, d ln C / d ln x: the percentage that one percent brings;
- what two moves for the better bring in dollars, worked out anew rather than along the tangent: by a tenth (times or
  divided by 1.1, which treats a factor and its inverse alike), and by one bootstrap standard error of the factor, which
  is as far as it is known. A move stops where the factor has its end.

Levers are ranked by the tenth, then by the standard error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rose.pricing import formulas
from rose.pricing.answers.cost_per_correct import Groups, Resamples, TokenCost
from rose.pricing.run.tokens import Tokens
from rose.pricing.stats import bootstrap

#: A move "by a tenth".
TENTH = 1.1

#: Each lever and what it is in plain words.
WORDS: dict[str, str] = {
    "alpha": "share of groups with an accepted answer (alpha)",
    "cpm": "price of a million tokens (CPM)",
    "r": "output tokens for each answer token (R)",
    "one_plus_rho": "rollouts for each answer (1 + rho)",
    "phi": "share of rollout tokens made on borrowed devices (phi)",
    "waste": "share of rollout tokens that were wasted (w)",
}
#: The least and the most each can be.
_ENDS: dict[str, tuple[float, float]] = {
    "alpha": (0, 1),
    "cpm": (0, float("inf")),
    "r": (1, float("inf")),
    "one_plus_rho": (1, float("inf")),
    "phi": (0, 1),
    "waste": (0, 1),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """What C3 is made of. Token prices `c_*` in dollars per useful token, `cpm` in dollars per million."""

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
        """Price of a rollout token over serving's own. Raises ValueError where the borrow lowered the bill."""
        return formulas.rollout_price_ratio(self.c_serving, self.c_dedicated, self.c_opportunistic, self.phi)

    @property
    def cost(self) -> float:
        """C3, dollars per million answer tokens."""
        return formulas.cost_correct(self.cpm, self.r, self.one_plus_rho - 1, self.alpha, self.pi)

    def moved(self, name: str, value: float) -> Factors:
        """The same with one factor at another value. With less waste, rollout tokens cost less."""
        if name != "waste":
            return replace(self, **{name: value})
        cheaper = (1 - self.waste) / (1 - value)
        return replace(
            self,
            waste=value,
            c_dedicated=self.c_dedicated * cheaper,
            c_opportunistic=self.c_opportunistic * cheaper,
        )

    def derivative(self, name: str) -> float:
        """dC3/dx, dollars per million answer tokens for each unit of the factor; see the module for the formulas."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A factor moved for the better: to what, what that saves in dollars per million answer tokens, and whether the
    factor's own end cut the move short."""

    to: float
    saves: float
    cut_short: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Lever:
    """One factor of C3 and how the cost moves with it. `error` is None where the factor is a price or does not vary."""

    name: str
    value: float
    derivative: float
    elasticity: float
    tenth: Move
    standard_error: float | None
    error: Move | None


def factors(cpm: float, cost: TokenCost, tokens: Mapping[str, Tokens], groups: Groups) -> Factors | None:
    """The factors of a run's C3; None where one is not known, or where the borrow lowered the bill (pi below 0)."""
    # Tokens on a device that the ledger does not know have no price, and no part in the waste.
    known = [tokens["borrowed"], tokens["dedicated"]]
    pi, generated = cost.pi("blended"), sum(part.generated for part in known)
    if pi is None or pi < 0 or groups.r is None or groups.rho is None or not groups.alpha or not generated:
        return None
    priced = {line: float(cost.by_line[line] or 0) for line in ("serving", "dedicated", "opportunistic")}
    return Factors(
        cpm=cpm,
        r=float(groups.r),
        one_plus_rho=float(groups.rho + 1),
        alpha=float(groups.alpha),
        phi=float(cost.borrowed_share or 0),
        waste=sum(part.wasted for part in known) / generated,
        c_serving=priced["serving"],
        c_dedicated=priced["dedicated"],
        c_opportunistic=priced["opportunistic"],
    )


def standard_errors(drawn: Resamples | None, groups: Groups, at: Factors) -> dict[str, float | None]:
    """One bootstrap standard error of each factor; None for a price and where there are too few groups."""
    if drawn is None:
        return dict.fromkeys(WORDS)
    # What a preemption threw away belongs to no group: it stays as it is beside what the turns made.
    useful = sum(int(row["borrowed_useful"]) + int(row["dedicated_useful"]) for row in groups.rows)
    made = sum(int(row["borrowed_tokens"]) + int(row["dedicated_tokens"]) for row in groups.rows)
    kept = (1 - at.waste) * made / useful if useful else 1.0
    return {
        "alpha": bootstrap.standard_error(drawn.alpha),
        "cpm": None,
        "r": bootstrap.standard_error(drawn.r),
        "one_plus_rho": bootstrap.standard_error(drawn.rho + 1),
        "phi": bootstrap.standard_error(drawn.phi),
        "waste": bootstrap.standard_error(1 - kept * drawn.useful_share),
    }


def levers(at: Factors, errors: Mapping[str, float | None]) -> tuple[Lever, ...]:
    """Every lever, the one whose tenth saves most first."""
    moves = []
    for name in WORDS:
        value, slope, error = getattr(at, name), at.derivative(name), errors.get(name)
        up = slope < 0
        moves.append(
            Lever(
                name=name,
                value=value,
                derivative=slope,
                elasticity=slope * value / at.cost if at.cost else 0.0,
                tenth=_move(at, name, value * TENTH if up else value / TENTH),
                standard_error=error,
                error=_move(at, name, value + error if up else value - error) if error else None,
            )
        )
    return tuple(sorted(moves, key=lambda move: (-_saving(move.tenth), -_saving(move.error))))


def in_words(ranked: tuple[Lever, ...]) -> str:
    """Which lever saves most, for a reader who knows none of the symbols."""
    best = _saving(ranked[0].tenth)
    if best <= 0:
        return "No lever saves anything: every factor is at its end, or the tokens are free."
    first = [lever for lever in ranked if round(_saving(lever.tenth) / best, 6) == 1]
    named = " or ".join(
        f"a tenth {'more of' if lever.derivative < 0 else 'off'} the {WORDS[lever.name]}" for lever in first
    )
    text = f"{named[0].upper()}{named[1:]} saves ${best:,.4g} on each million answer tokens, more than any other lever."
    widest = max(ranked, key=lambda lever: _saving(lever.error))
    if _saving(widest.error) > 0:
        text += (
            f" Least certain is the {WORDS[widest.name]}: one standard error of it is worth "
            f"${_saving(widest.error):,.4g}."
        )
    dear = next(lever for lever in ranked if lever.name == "phi")
    if dear.derivative > 0:
        text += " Borrowing more would raise the cost: a borrowed token costs more than a dedicated one."
    return text


def _move(at: Factors, name: str, wanted: float) -> Move:
    low, high = _ENDS[name]
    to = min(max(wanted, low), high)
    return Move(to=to, saves=at.cost - at.moved(name, to).cost, cut_short=to != wanted)


def _saving(move: Move | None) -> float:
    return 0.0 if move is None else bootstrap.rounded(move.saves)
