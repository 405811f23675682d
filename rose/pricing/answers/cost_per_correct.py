"""Cost per correct answer, from a ledger.

Two figures, because two questions are asked:

- *measured*: dollars over accepted trajectories, at each price line. The sum of the dollars over the sum of the
  accepted, never a mean of ratios.
- *formula*: CPM * R * (1 + pi * rho) / alpha, dollars per million answer tokens, at the token prices in force when the
  run began. [A] at pi = 1; with the price of rollout tokens as they were really made, [D], it is C3. Its factors come
  from the groups that were judged:
    rho   = trajectories / judged groups - 1: what a group made beyond the one answer that would be kept.
    alpha = judged groups with an accepted trajectory / judged groups: the chance that the kept answer, the best of its
            group in the verifier's eyes, is accepted.
  So (1 + rho) / alpha is trajectories over solved groups, a sum over a sum. Taking rho as rejected trajectories per
  accepted one together with the accept rate of trajectories would charge each rejection twice.

The accept rate of single trajectories (`accept_rate`) is what a learning curve shows and what the measured figure
divides by. Stale trajectories are in neither rate: they were dropped for age, and their tokens are in the waste.

Both have a 95% interval by a bootstrap over groups (trajectories of a group share a task and are not independent, and
tokens less so): rho, alpha, R and phi of one draw come from the same groups. The cost of a token moves too, by how
unevenly tokens were made over the run (`token_spread`) and, for borrowed ones, within m's own interval. Shares (alpha,
the accept rate, PPV) have Wilson's interval, groups counted as clusters.

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

from rose.pricing import formulas
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.charges.allocation import Allocation
from rose.pricing.money import NANO_USD_PER_USD
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.run.token_spread import UNKNOWN, Spread
from rose.pricing.run.tokens import Tokens
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats, Interval
from rose.pricing.stats.uncertainty import Clusters, Estimate, effective_trials, wilson

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
            "serving": _quotient(serving_usd, borrowed.useful),
            "dedicated": _quotient(dedicated_usd, dedicated.useful),
            "opportunistic": _quotient(borrow_usd, borrowed.useful),
            "blended": _quotient(borrow_usd + dedicated_usd, useful),
        },
        paid={"borrowed": borrow_usd, "dedicated": dedicated_usd},
        borrowed_share=_quotient(Fraction(borrowed.useful), useful),
        useful=useful,
        borrow=borrow.charged_estimate,
        no_borrow_interval=borrow.no_interval,
        spreads=spreads,
    )


def rollout_usd(allocation: Allocation) -> Fraction:
    """Amortized dollars of rollout work on these devices."""
    return Fraction(allocation.amortized_nano_usd()["rollout"], NANO_USD_PER_USD)


def _quotient(numerator: Fraction, denominator: int) -> Fraction | None:
    return numerator / denominator if denominator else None


@dataclass(frozen=True, slots=True)
class Resamples:
    """Sums over resampled groups, one value of each for each resample; ratios of them where a group has none."""

    judged_groups: Floats
    judged_groups_trajectories: Floats
    judged: Floats
    accepted: Floats
    output_tokens: Floats
    answer_tokens: Floats
    borrowed_tokens: Floats
    dedicated_tokens: Floats
    borrowed_useful: Floats
    dedicated_useful: Floats
    #: Groups that were drawn each time.
    units: int
    #: What these shares may be, from their own intervals, in the order of the resamples: where nearly all groups have
    #: an accepted trajectory, or nearly all that an audit saw was correct, resamples by themselves differ too little.
    alpha: Floats
    ppv: Floats

    @property
    def rho(self) -> Floats:
        return _ratio(self.judged_groups_trajectories, self.judged_groups) - 1

    @property
    def r(self) -> Floats:
        return _ratio(self.output_tokens, self.answer_tokens)

    @property
    def phi(self) -> Floats:
        return _ratio(self.borrowed_useful, self.borrowed_useful + self.dedicated_useful)


_COLUMNS = tuple(name for name in Resamples.__slots__ if name not in ("units", "alpha", "ppv"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """Counts over the groups of a run, and the same per group for resampling."""

    rows: Sequence[Mapping[str, Any]]
    trajectories: int = 0
    judged_groups: int = 0
    judged_groups_trajectories: int = 0
    solved_groups: int = 0
    judged: int = 0
    accepted: int = 0
    audited: int = 0
    audited_correct: int = 0

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Groups:
        """Counted over rows of the query `groups`."""
        judged = [row for row in rows if row["judged"]]
        return cls(
            judged_groups=len(judged),
            judged_groups_trajectories=sum(size(row) for row in judged),
            solved_groups=sum(row["accepted"] > 0 for row in judged),
            rows=rows,
            **{
                name: sum(row[name] for row in rows)
                for name in ("trajectories", "judged", "accepted", "audited", "audited_correct")
            },
        )

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
    def r(self) -> Fraction | None:
        """Output tokens over answer tokens, of trajectories that were not lost."""
        output, answer = (sum(int(row[f"{name}_tokens"]) for row in self.rows) for name in ("output", "answer"))
        return Fraction(output, answer) if answer else None

    @property
    def ppv(self) -> Fraction | None:
        """Share of audited accepted trajectories that are correct; None without an audit."""
        return Fraction(self.audited_correct, self.audited) if self.audited else None


def groups(connection: duckdb.DuckDBPyConnection, run_id: str) -> Groups:
    """What the verifier said, group by group."""
    set_variables(connection, run_id=run_id)
    return Groups.of(rows(connection, "answers/groups"))


def size(group: Mapping[str, Any]) -> int:
    """Trajectories of a group. A verdict can reach the ledger before its trajectory's own event does."""
    return max(int(group["trajectories"]), int(group["judged"]))


def measured(cost: TokenCost, groups: Groups) -> dict[str, Fraction | None]:
    """Dollars per accepted trajectory on each line: all useful tokens at the line's price, over all accepted."""
    return {
        line: None if usd is None or not groups.accepted else usd * cost.useful / groups.accepted
        for line, usd in cost.by_line.items()
    }


def resample(groups: Groups) -> Resamples | None:
    """Draw the groups with replacement again and again; None for fewer than two groups."""
    solved = [int(row["judged"] and row["accepted"] > 0) for row in groups.rows]
    audits = [(int(row["audited"]), int(row["audited_correct"])) for row in groups.rows]
    columns = [[*_columns(row), one, *audit] for row, one, audit in zip(groups.rows, solved, audits, strict=True)]
    drawn = bootstrap.sums(np.array(columns, dtype=np.int64))
    if drawn is None:
        return None
    sums = dict(zip((*_COLUMNS, "solved", "audited", "correct"), drawn.T, strict=True))
    return Resamples(
        **{name: sums[name] for name in _COLUMNS},
        units=len(columns),
        alpha=_share_draws(groups, groups.alpha, ("solved", "one"), _ratio(sums["solved"], sums["judged_groups"])),
        ppv=_share_draws(groups, groups.ppv, ("audited_correct", "audited"), _ratio(sums["correct"], sums["audited"])),
    )


def _share_draws(groups: Groups, share: Fraction | None, columns: tuple[str, str], resampled: Floats) -> Floats:
    interval = share_interval(groups, *columns)
    if share is None or interval is None or interval.high is None:
        return np.full(bootstrap.RESAMPLES, np.nan)
    return Estimate(float(share), interval.low, interval.high).draws_like(resampled)


def share_interval(groups: Groups, successes: str, trials: str) -> Interval | None:
    """Wilson's interval of a share of two columns of the groups, a group counting as one cluster.

    `solved` is whether a judged group has an accepted trajectory, `one` whether it was judged. None without a trial.
    """
    pairs = [(_share(row, successes), _share(row, trials)) for row in groups.rows if _share(row, trials)]
    y, x = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    if not x:
        return None
    products = (sum(a * a for a, _ in pairs), sum(a * b for a, b in pairs), sum(b * b for _, b in pairs))
    size_of_all = float(x) if x == len(pairs) else effective_trials(y, x, Clusters(len(pairs), *products))
    low, high = wilson(y / x, size_of_all)
    return Interval(low=bootstrap.rounded(low), high=bootstrap.rounded(high))


def _share(group: Mapping[str, Any], name: str) -> int:
    if name == "one":
        return int(bool(group["judged"]))
    return int(group["judged"] and group["accepted"] > 0) if name == "solved" else int(group[name])


def measured_interval(
    cost: TokenCost, tokens: Mapping[str, Tokens], groups: Groups, drawn: Resamples | None, line: str
) -> tuple[Interval | None, Interval | None]:
    """Intervals of `measured` on a line, and of the same over PPV; None where there is too little to bound one.

    The dollars of a placement are divided among the groups by the tokens their turns made there; on `blended` each
    placement has its own price.
    """
    if drawn is None or cost.by_line[line] is None or cost.no_interval(line):
        return None, None
    return _intervals(_ratio(_dollars(cost, tokens, groups, drawn, line), drawn.accepted), drawn)


def judged_draws(cost: TokenCost, tokens: Mapping[str, Tokens], groups: Groups, drawn: Resamples) -> Floats:
    """Dollars per judged trajectory on the blended line, one for each resample; only where it may have an interval."""
    return _ratio(_dollars(cost, tokens, groups, drawn, "blended"), drawn.judged)


def _dollars(cost: TokenCost, tokens: Mapping[str, Tokens], groups: Groups, drawn: Resamples, line: str) -> Floats:
    prices = cost.price_draws(line)
    dollars = np.zeros(bootstrap.RESAMPLES)
    for place, sums in (("borrowed", drawn.borrowed_tokens), ("dedicated", drawn.dedicated_tokens)):
        if made := sum(int(row[f"{place}_tokens"]) for row in groups.rows):
            dollars += sums * prices[place] * (tokens[place].useful / made)
    return dollars


def formula(cpm_usd: float, r: Fraction | None, groups: Groups, pi: Fraction | None) -> float | None:
    """CPM * R * (1 + pi * rho) / alpha, dollars per million answer tokens; None where a factor is not known.

    None too where pi is below 0, which the formula does not cover: the borrow lowered the bill.
    """
    if r is None or pi is None or pi < 0 or groups.rho is None or not groups.alpha:
        return None
    return formulas.cost_correct(cpm_usd, float(r), float(groups.rho), float(groups.alpha), float(pi))


def formula_interval(
    cpm_usd: float, cost: TokenCost, drawn: Resamples | None, line: str
) -> tuple[Interval | None, Interval | None]:
    """Intervals of `formula` on a line, dollars, and of the same over PPV; None where there is too little to bound one.

    On `blended`, which makes it C3, pi moves with the borrowed share of each draw's tokens.
    """
    if drawn is None or (pi := cost.pi(line)) is None or pi < 0 or no_formula_interval(cost, line):
        return None, None
    return _intervals(_ratio(cpm_usd * drawn.r * (1 + _pi(cost, drawn, line) * drawn.rho), drawn.alpha), drawn)


def no_formula_interval(cost: TokenCost, line: str) -> str | None:
    """Why the formula has no interval on a line: pi is a price of a token over serving's own, but on its own line 1."""
    return None if line == "serving" else cost.no_interval(line) or cost.no_interval("serving")


def cpm(book: PriceBook, at_ns: int) -> float:
    """The price book's blended price of a million serving tokens at `at_ns`, UTC. Raises PriceBookError for none."""
    prices = book.tokens_at(at_ns)
    return formulas.blended_price(float(prices.input_usd_per_million), float(prices.output_usd_per_million))


def _columns(group: Mapping[str, Any]) -> list[int]:
    """A group's part of each sum of Resamples, in their order."""
    judged = bool(group["judged"])
    own = {**group, "judged_groups": judged, "judged_groups_trajectories": size(group) if judged else 0}
    return [int(own[name]) for name in _COLUMNS]


def _pi(cost: TokenCost, drawn: Resamples, line: str) -> Floats | float:
    """Price of a rollout token over serving's own, one for each draw."""
    if line == "serving":
        return 1.0
    prices, serving = cost.price_draws(line), cost.price_draws("serving")["borrowed"]
    if line == "dedicated":
        return _ratio(prices["dedicated"], serving)
    # How evenly borrowed tokens were made moves both sides of their ratio alike: the same draws.
    borrowed = prices["borrowed"] / serving
    # Where one of the two was never made, its share is 0 in every draw.
    return (
        borrowed if line == "opportunistic" else drawn.phi * borrowed + (1 - drawn.phi) * prices["dedicated"] / serving
    )


def _intervals(values: Floats, drawn: Resamples) -> tuple[Interval | None, Interval | None]:
    """Of cost per accepted, and of it over PPV."""
    return bootstrap.interval(values, drawn.units), bootstrap.interval(_ratio(values, drawn.ppv), drawn.units)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Undefined, or infinite, where a draw has nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(numerator / denominator, dtype=np.float64)
