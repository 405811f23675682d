"""The cost of a correct answer, in two figures. A bootstrap over blocks of groups gives their 95% intervals.
- *measured*: dollars / accepted trajectories, a ratio of sums, for each token price in LINES.
- *formula*: CPM * R * (1 + pi * rho) / alpha, in dollars per million answer tokens, at the token prices of the run's
  start. With pi = 1, this formula is published ([A]). With pi from the prices of rollout tokens, it is called C3 ([D]).

In the formula, CPM is the mean price of a million tokens, and R is output tokens / answer tokens. rho and alpha count
only groups with a verdict ("judged"):
- rho = trajectories / judged groups - 1: how many trajectories a group has besides the answer that is kept.
- alpha = judged groups with an accepted trajectory / judged groups.

Stale trajectories count neither in alpha nor in the accept rate. The bootstrap also draws token prices (`tokens`) and
the cost m of borrowing from their intervals. A share has Wilson's interval, with groups as clusters. PPV is the share
of audited accepted trajectories that are correct. A figure divided by PPV is the cost per correct answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np

from rose.pricing import formulas
from rose.pricing.charges.allocation import Allocation
from rose.pricing.marginal_cost.marginal import Marginal
from rose.pricing.money import NANO_USD_PER_USD
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.run.tokens import UNKNOWN, Spread, Tokens
from rose.pricing.stats import bootstrap, uncertainty
from rose.pricing.stats.bootstrap import Floats, Interval
from rose.pricing.stats.uncertainty import Clusters, Estimate

#: Prices of a rollout token: serving's amortized one, a dedicated device's, the borrow's marginal one, and the mix.
LINES: tuple[str, ...] = ("serving", "dedicated", "opportunistic", "blended")

_SEEDS = {"borrowed": 1, "dedicated": 2, "m": 3}  #: Seeds of the draws of token prices, and of m.


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCost:
    """Exact dollars per useful token at each price line, and the share of useful tokens that were borrowed."""

    by_line: Mapping[str, Fraction | None]
    #: Dollars paid for rollouts: `borrowed` marginal with avoidable device time, `dedicated` amortized.
    paid: Mapping[str, Fraction]
    borrowed_share: Fraction | None
    useful: int
    borrow: Estimate | None  #: The charge for borrowing; None where `no_borrow_interval` says why.
    no_borrow_interval: str | None
    spreads: Mapping[str, Spread]  #: How well a token's price is known, by placement, where it is known.

    def pi(self, line: str) -> Fraction | None:
        cost, serving = self.by_line[line], self.by_line["serving"]
        return cost / serving if cost is not None and serving else None

    def no_interval(self, line: str) -> str | None:
        places = {"serving": ["borrowed"], "dedicated": ["dedicated"], "opportunistic": ["borrowed"]}.get(line)
        if places is None:
            shares = {"borrowed": self.borrowed_share, "dedicated": 1 - (self.borrowed_share or 0)}
            places = [place for place, share in shares.items() if share]
        if line in ("opportunistic", "blended") and "borrowed" in places and self.borrow is None:
            return self.no_borrow_interval
        return None if all(place in self.spreads for place in places) else UNKNOWN

    def price_draws(self, line: str) -> dict[str, Floats]:
        factor = {
            place: self.spreads[place].draws(_SEEDS[place]) if place in self.spreads else np.ones(bootstrap.RESAMPLES)
            for place in ("borrowed", "dedicated")
        }
        if line in ("serving", "dedicated"):
            place = "borrowed" if line == "serving" else "dedicated"
            return dict.fromkeys(factor, float(self.by_line[line] or 0) * factor[place])
        marginal = np.zeros(bootstrap.RESAMPLES)
        if self.borrow is not None and (useful := self.useful * float(self.borrowed_share or 0)):
            off = self.borrow.draws(_SEEDS["m"]) - self.borrow.value
            marginal = float(self.by_line["opportunistic"] or 0) * factor["borrowed"] + off / useful
        dedicated = float(self.by_line["dedicated"] or 0) * factor["dedicated"]
        return {"borrowed": marginal, "dedicated": marginal if line == "opportunistic" else dedicated}


def token_cost(
    allocation: Allocation, tokens: Mapping[str, Tokens], borrow: Marginal, spreads: Mapping[str, Spread]
) -> TokenCost:
    """[D] Return rollout dollars / useful (not wasted) tokens at each price line. This is c = p / (tau * (1 - w)).

    In the line `serving`, borrowed time has its amortized price. In `opportunistic`, borrowed time has its marginal
    price, plus the price of avoidable device time. In `blended`, all rollout time has the price that was paid."""
    borrowed, dedicated = tokens["borrowed"].useful, tokens["dedicated"].useful
    dedicated_usd, useful = rollout_usd(allocation.in_pools("rollout", "train")), borrowed + dedicated
    sums = {
        "serving": (rollout_usd(allocation.in_pools("serving")), borrowed),
        "dedicated": (dedicated_usd, dedicated),
        "opportunistic": (borrow.charged_usd, borrowed),
        "blended": (borrow.charged_usd + dedicated_usd, useful),
    }
    return TokenCost(
        by_line={line: usd / count if count else None for line, (usd, count) in sums.items()},
        paid={"borrowed": borrow.charged_usd, "dedicated": dedicated_usd},
        borrowed_share=Fraction(borrowed, useful) if useful else None,
        useful=useful,
        borrow=borrow.charged_estimate,
        no_borrow_interval=borrow.no_interval,
        spreads=spreads,
    )


def rollout_usd(allocation: Allocation) -> Fraction:
    return Fraction(allocation.amortized_nano_usd()["rollout"], NANO_USD_PER_USD)


@dataclass(frozen=True, slots=True)
class Resamples:
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
    units: int  #: Blocks that were drawn; 0 where groups are too few for how much they resemble their neighbours.
    alpha: Floats  #: Drawn from its own interval, ranked as the resamples, which differ too little near 100%.
    ppv: Floats  #: Drawn as `alpha`.

    @property
    def rho(self) -> Floats:
        return _ratio(self.judged_groups_trajectories, self.judged_groups) - 1

    @property
    def r(self) -> Floats:
        return _ratio(self.output_tokens, self.answer_tokens)

    @property
    def phi(self) -> Floats:
        return _ratio(self.borrowed_useful, self.borrowed_useful + self.dedicated_useful)


_MADE = ("borrowed_tokens", "dedicated_tokens")
_COLUMNS = tuple(name for name in Resamples.__slots__ if name not in ("units", "alpha", "ppv"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    rows: Sequence[Mapping[str, Any]]  #: In the order of time.
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
        return Fraction(self.judged_groups_trajectories, self.judged_groups) - 1 if self.judged_groups else None

    @property
    def alpha(self) -> Fraction | None:
        return Fraction(self.solved_groups, self.judged_groups) if self.judged_groups else None

    @property
    def accept_rate(self) -> Fraction | None:
        return Fraction(self.accepted, self.judged) if self.judged else None

    @property
    def r(self) -> Fraction | None:
        output, answer = (sum(int(row[f"{name}_tokens"]) for row in self.rows) for name in ("output", "answer"))
        return Fraction(output, answer) if answer else None

    @property
    def ppv(self) -> Fraction | None:
        return Fraction(self.audited_correct, self.audited) if self.audited else None


def groups(connection: duckdb.DuckDBPyConnection, run_id: str) -> Groups:
    set_variables(connection, run_id=run_id)
    return Groups.of(rows(connection, "answers/groups"))


def size(group: Mapping[str, Any]) -> int:
    """Return how many trajectories a group has. A trajectory counts even if the ledger has only its verdict so far."""
    return max(int(group["trajectories"]), int(group["judged"]))


def measured(cost: TokenCost, groups: Groups) -> dict[str, Fraction | None]:
    return {
        line: None if usd is None or not groups.accepted else usd * cost.useful / groups.accepted
        for line, usd in cost.by_line.items()
    }


def resample(groups: Groups) -> Resamples | None:
    if not groups.rows:
        return None
    names = (*_COLUMNS, "solved", "audited", "audited_correct")
    columns = np.array([[_part(row, name) for name in names] for row in groups.rows], dtype=np.int64)
    drawn, units = bootstrap.by_time(columns, columns[:, [names.index(name) for name in _MADE]])
    if drawn is None:
        return None
    sums = dict(zip(names, drawn.T, strict=True))
    shares = {"alpha": (groups.alpha, "solved", "judged_groups"), "ppv": (groups.ppv, "audited_correct", "audited")}
    return Resamples(
        **{name: sums[name] for name in _COLUMNS},
        units=units,
        **{name: _share_draws(groups, share, columns, sums) for name, (share, *columns) in shares.items()},
    )


def _share_draws(groups: Groups, share: Fraction | None, names: Sequence[str], sums: Mapping[str, Floats]) -> Floats:
    successes, trials = names
    estimate = Estimate.between(share or 0, share_interval(groups, successes, trials))
    if share is None or estimate is None:
        return np.full(bootstrap.RESAMPLES, np.nan)
    return estimate.draws_like(_ratio(sums[successes], sums[trials]))


def share_interval(groups: Groups, successes: str, trials: str) -> Interval | None:
    pairs = [(_part(row, successes), _part(row, trials)) for row in groups.rows if _part(row, trials)]
    if not pairs:
        return None
    y, x = (sum(column) for column in zip(*pairs, strict=True))
    low, high = uncertainty.share_interval(y, x, Clusters.of(pairs))
    return Interval(low=low, high=high)


def _part(group: Mapping[str, Any], name: str) -> int:
    if name == "judged_groups_trajectories":
        return size(group) if group["judged"] else 0
    if name == "judged_groups":
        return int(bool(group["judged"]))
    return int(group["judged"] and group["accepted"] > 0) if name == "solved" else int(group[name])


def measured_interval(
    cost: TokenCost, tokens: Mapping[str, Tokens], groups: Groups, drawn: Resamples | None, line: str
) -> tuple[Interval | None, Interval | None]:
    """Return the intervals of `measured` and of `measured` / PPV, both at the prices of `line`. Each may be None."""
    if drawn is None or cost.by_line[line] is None or cost.no_interval(line):
        return None, None
    return _intervals(_ratio(_dollars(cost, tokens, groups, drawn, line), drawn.accepted), drawn)


def judged_draws(cost: TokenCost, tokens: Mapping[str, Tokens], groups: Groups, drawn: Resamples) -> Floats:
    return _ratio(_dollars(cost, tokens, groups, drawn, "blended"), drawn.judged)


def _dollars(cost: TokenCost, tokens: Mapping[str, Tokens], groups: Groups, drawn: Resamples, line: str) -> Floats:
    prices = cost.price_draws(line)
    dollars = np.zeros(bootstrap.RESAMPLES)
    for place, sums in (("borrowed", drawn.borrowed_tokens), ("dedicated", drawn.dedicated_tokens)):
        if made := sum(int(row[f"{place}_tokens"]) for row in groups.rows):
            dollars += sums * prices[place] * (tokens[place].useful / made)
    return dollars


def formula(cpm_usd: float, r: Fraction | None, groups: Groups, pi: Fraction | None) -> float | None:
    if r is None or pi is None or pi < 0 or groups.rho is None or not groups.alpha:
        return None
    return formulas.cost_correct(cpm_usd, float(r), float(groups.rho), float(groups.alpha), float(pi))


def formula_interval(
    cpm_usd: float, cost: TokenCost, drawn: Resamples | None, line: str
) -> tuple[Interval | None, Interval | None]:
    if drawn is None or (pi := cost.pi(line)) is None or pi < 0 or no_formula_interval(cost, line):
        return None, None
    return _intervals(_ratio(cpm_usd * drawn.r * (1 + _pi(cost, drawn, line) * drawn.rho), drawn.alpha), drawn)


def no_formula_interval(cost: TokenCost, line: str) -> str | None:
    return None if line == "serving" else cost.no_interval(line) or cost.no_interval("serving")


def cpm(book: PriceBook, at_ns: int) -> float:
    prices = book.tokens_at(at_ns)
    return formulas.blended_price(float(prices.input_usd_per_million), float(prices.output_usd_per_million))


def _pi(cost: TokenCost, drawn: Resamples, line: str) -> Floats | float:
    if line == "serving":
        return 1.0
    # A useful token costs more where more of the tokens are wasted.
    wasted = {
        place: _ratio(made, useful) * useful.mean() / made.mean() if made.any() and useful.any() else 1.0
        for place, made, useful in (
            ("borrowed", drawn.borrowed_tokens, drawn.borrowed_useful),
            ("dedicated", drawn.dedicated_tokens, drawn.dedicated_useful),
        )
    }
    prices = {place: price * wasted[place] for place, price in cost.price_draws(line).items()}
    serving = cost.price_draws("serving")["borrowed"] * wasted["borrowed"]
    if line == "dedicated":
        return _ratio(prices["dedicated"], serving)
    # Uneven production of borrowed tokens moves numerator and denominator alike: use the same draws.
    borrowed = prices["borrowed"] / serving
    if line == "opportunistic":
        return borrowed
    # A side without tokens has a share of 0 in every draw.
    return drawn.phi * borrowed + (1 - drawn.phi) * prices["dedicated"] / serving


def _intervals(values: Floats, drawn: Resamples) -> tuple[Interval | None, Interval | None]:
    return _interval(values, drawn.units), _interval(_ratio(values, drawn.ppv), drawn.units)


def _interval(values: Floats, units: int) -> Interval | None:
    """Return the interval of a figure that varies with the resamples and, independently, with prices. A price's part of
    the variance is its squared correlation with the figure (degrees of freedom by Welch and Satterthwaite)."""
    finite, freedom = np.isfinite(values), units - 1
    if np.any(finite) and np.ptp(values[finite]):
        draws = (bootstrap.normals(seed)[finite] for seed in _SEEDS.values())
        parts = [float(np.corrcoef(values[finite], drawn)[0, 1]) ** 2 for drawn in draws]
        freedom = round(freedom / sum(part**2 for part in (*parts, 1 - sum(parts))))
    return bootstrap.interval(values, units, freedom)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(numerator / denominator, dtype=np.float64)
