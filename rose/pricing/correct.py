"""Cost per correct answer, from a ledger.

Two figures, because two questions are asked:

- *measured*: dollars over accepted trajectories, at each price line. The sum of the dollars over the sum of the
  accepted, never a mean of ratios. Its interval is a bootstrap over groups (trajectories of a group share a task and
  are not independent, and tokens less so), with the cost of a token held.
- *formula*: CPM * R * (1 + pi * rho) / alpha, dollars per million answer tokens, at the price book's token prices. Its
  factors come from the groups that were judged:
    rho   = trajectories / judged groups - 1: what a group made beyond the one answer that would be kept.
    alpha = judged groups with an accepted trajectory / judged groups: the chance that the kept answer, the best of its
            group in the verifier's eyes, is accepted.
  So (1 + rho) / alpha is trajectories over solved groups, a sum over a sum. Taking rho as rejected trajectories per
  accepted one together with the accept rate of trajectories would charge each rejection twice.

The accept rate of single trajectories (`accept_rate`) is what a learning curve shows and what the measured figure
divides by. Stale trajectories are in neither rate: they were dropped for age, and their tokens are in the waste.

alpha is acceptance, not correctness. Where an audit knows the truth of accepted trajectories, PPV = correct among
accepted, and C / PPV is the cost of one that is really correct.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from rose.pricing import formulas
from rose.pricing.allocation import Allocation
from rose.pricing.marginal import Marginal
from rose.pricing.money import NANO_USD_PER_USD
from rose.pricing.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.tokens import Tokens

Floats = npt.NDArray[np.float64]

#: What a rollout token is priced at: serving's amortized price, a dedicated device's, the borrow's marginal price, and
#: the mix that was used.
LINES: tuple[str, ...] = ("serving", "dedicated", "opportunistic", "blended")

_RESAMPLES = 2000
_SEED = 0
_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A 95% interval; `high` is None where too many resamples had no correct answer at all to bound it."""

    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class Resamples:
    """Sums over resampled groups, one value of each for each resample."""

    borrowed_tokens: Floats
    dedicated_tokens: Floats
    accepted: Floats
    audited: Floats
    audited_correct: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """Counts over the groups of a run, and the same per group for resampling."""

    trajectories: int
    judged_groups: int
    judged_groups_trajectories: int
    solved_groups: int
    judged: int
    accepted: int
    audited: int
    audited_correct: int
    each: Sequence[Mapping[str, Any]]

    @property
    def rho(self) -> Fraction | None:
        """Trajectories beyond the kept one, per judged group."""
        return Fraction(self.judged_groups_trajectories, self.judged_groups) - 1 if self.judged_groups else None

    @property
    def alpha(self) -> Fraction | None:
        """Share of judged groups with an accepted trajectory."""
        return Fraction(self.solved_groups, self.judged_groups) if self.judged_groups else None

    @property
    def accept_rate(self) -> Fraction | None:
        """Share of judged trajectories that the verifier accepted."""
        return Fraction(self.accepted, self.judged) if self.judged else None

    @property
    def ppv(self) -> Fraction | None:
        """Share of audited accepted trajectories that are correct; None without an audit."""
        return Fraction(self.audited_correct, self.audited) if self.audited else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCost:
    """Exact dollars per useful token on each line, and phi, the borrowed share of useful tokens."""

    by_line: Mapping[str, Fraction | None]
    borrowed_share: Fraction | None
    useful: int

    def pi(self, line: str) -> Fraction | None:
        """Price of a rollout token on a line over serving's own; None where either is unknown."""
        cost, serving = self.by_line[line], self.by_line["serving"]
        return cost / serving if cost is not None and serving else None


def groups(connection: duckdb.DuckDBPyConnection, run_id: str) -> Groups:
    """What the verifier said, group by group."""
    set_variables(connection, run_id=run_id)
    each = rows(connection, "groups")
    judged = [row for row in each if row["judged"]]
    return Groups(
        trajectories=sum(row["trajectories"] for row in each),
        judged_groups=len(judged),
        # A verdict can reach the ledger before its trajectory's own event does.
        judged_groups_trajectories=sum(max(row["trajectories"], row["judged"]) for row in judged),
        solved_groups=sum(row["accepted"] > 0 for row in judged),
        judged=sum(row["judged"] for row in each),
        accepted=sum(row["accepted"] for row in each),
        audited=sum(row["audited"] for row in each),
        audited_correct=sum(row["audited_correct"] for row in each),
        each=each,
    )


def token_cost(allocation: Allocation, tokens: Mapping[str, Tokens], borrow: Marginal) -> TokenCost:
    """[D] c = p / (tau * (1 - w)) on each line, which is a placement's rollout dollars over its useful tokens.

    `serving` prices the borrowed device-seconds at their amortized price, `opportunistic` at the marginal one (at the
    amortized one where the idle-anyway gate does not hold). `blended` is what was really paid.
    """
    borrowed, dedicated = tokens["borrowed"], tokens["dedicated"]
    serving_usd = rollout_usd(allocation.of("serving"))
    dedicated_usd = rollout_usd(allocation.of("rollout", "train"))
    borrow_usd = borrow.usd if borrow.idle_anyway else serving_usd
    useful = borrowed.useful + dedicated.useful
    return TokenCost(
        by_line={
            "serving": _over(serving_usd, borrowed.useful),
            "dedicated": _over(dedicated_usd, dedicated.useful),
            "opportunistic": _over(borrow_usd, borrowed.useful),
            "blended": _over(borrow_usd + dedicated_usd, useful),
        },
        borrowed_share=_over(Fraction(borrowed.useful), useful),
        useful=useful,
    )


def rollout_usd(allocation: Allocation) -> Fraction:
    """Amortized dollars of rollout work on these devices."""
    return Fraction(allocation.amortized_nano_usd()["rollout"], NANO_USD_PER_USD)


def measured(cost: TokenCost, found: Groups) -> dict[str, Fraction | None]:
    """Dollars per accepted trajectory on each line: all useful tokens at the line's price, over all accepted."""
    return {
        line: None if usd is None or not found.accepted else usd * cost.useful / found.accepted
        for line, usd in cost.by_line.items()
    }


def resample(found: Groups) -> Resamples | None:
    """Draw the groups with replacement, as many as there are, again and again; None for fewer than two groups.

    Seeded, and summed in integers: the same groups give the same sums on any machine.
    """
    size = len(found.each)
    if size < 2:
        return None
    random = np.random.default_rng(_SEED)
    columns = np.array([[int(row[name]) for name in Resamples.__slots__] for row in found.each], dtype=np.int64)
    sums = np.empty((_RESAMPLES, columns.shape[1]), dtype=np.int64)
    for index in range(_RESAMPLES):
        times_drawn = np.bincount(random.integers(size, size=size), minlength=size)
        sums[index] = times_drawn @ columns
    return Resamples(*sums.T.astype(np.float64))


def measured_interval(
    cost: TokenCost, tokens: Mapping[str, Tokens], found: Groups, drawn: Resamples | None, line: str
) -> tuple[Interval | None, Interval | None]:
    """Intervals of `measured` on a line, and of the same over PPV; None where there is too little to bound one.

    The dollars of a placement are divided among the groups by the tokens their turns made there; on `blended` each
    placement has its own price.
    """
    if drawn is None or (usd := cost.by_line[line]) is None:
        return None, None
    blended = line == "blended"
    prices = {
        "borrowed": (cost.by_line["opportunistic"] if blended else usd) or Fraction(0),
        "dedicated": (cost.by_line["dedicated"] if blended else usd) or Fraction(0),
    }
    dollars = np.zeros(_RESAMPLES)
    for place, sums in (("borrowed", drawn.borrowed_tokens), ("dedicated", drawn.dedicated_tokens)):
        if made := sum(int(row[f"{place}_tokens"]) for row in found.each):
            dollars += sums * float(prices[place] * tokens[place].useful / made)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_accepted = dollars / drawn.accepted
        per_correct = per_accepted * drawn.audited / drawn.audited_correct
    return interval(per_accepted), interval(per_correct)


def interval(values: Floats) -> Interval | None:
    """The middle 95% of resampled values; infinite or undefined ones (nothing was correct) count as the highest."""
    ordered = np.sort(np.where(np.isfinite(values), values, np.inf))
    tail = (1 - _CONFIDENCE) / 2
    low, high = ordered[int(tail * len(ordered))], ordered[int((1 - tail) * len(ordered)) - 1]
    if not np.isfinite(low):
        return None
    return Interval(low=float(low), high=float(high) if np.isfinite(high) else None)


def formula(book: PriceBook, r: Fraction | None, found: Groups, pi: Fraction | None) -> float | None:
    """CPM * R * (1 + pi * rho) / alpha, dollars per million answer tokens; None where a factor is not known."""
    if r is None or pi is None or found.rho is None or not found.alpha:
        return None
    return formulas.cost_correct(cpm(book), float(r), float(found.rho), float(found.alpha), float(pi))


def partials(book: PriceBook, r: Fraction | None, found: Groups) -> formulas.Partials | None:
    """The partials of the formula at pi = 1; None where a factor is not known or CPM is 0."""
    if r is None or found.rho is None or not found.alpha or not cpm(book):
        return None
    return formulas.cost_correct_partials(cpm(book), float(r), float(found.rho), float(found.alpha))


def cpm(book: PriceBook) -> float:
    """The price book's blended price of a million serving tokens."""
    return formulas.blended_price(float(book.tokens.input_usd_per_million), float(book.tokens.output_usd_per_million))


def _over(numerator: Fraction, denominator: int) -> Fraction | None:
    return numerator / denominator if denominator else None
