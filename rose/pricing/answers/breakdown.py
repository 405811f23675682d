"""What an accepted trajectory cost, by policy version, by task or by step: rows that sum to the run's own figure.

The dollars are those of the blended price line: what was really paid, borrowed time at its marginal price and dedicated
time at its amortized one. Each placement's dollars are divided among the rows by the tokens made there, to the
nano-dollar. A trajectory belongs whole to one row: to the oldest policy version that made one of its tokens, to its
task, to its step. What belongs to none is the row `unallocated`: tokens that a preemption threw away, trajectories
whose version or task the ledger does not have, and rollout time in which no token was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import duckdb
import numpy as np

from rose.pricing.answers.cost_per_correct import TokenCost
from rose.pricing.money import NANO_USD_PER_USD, nano_usd_of, split
from rose.pricing.query import rows, set_variables
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats, Interval

UNALLOCATED = "unallocated"
By = Literal["version", "task", "step"]
_PLACES = ("borrowed", "dedicated")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One row: its dollars and accepted trajectories, and the interval of one over the other, dollars."""

    key: str
    cost_nano_usd: int
    accepted: int
    interval: Interval | None

    @property
    def usd_per_accepted(self) -> Fraction | None:
        """None where nothing was accepted, and where the row is what belongs to none."""
        if not self.accepted or self.key == UNALLOCATED:
            return None
        return Fraction(self.cost_nano_usd, NANO_USD_PER_USD * self.accepted)


def by(connection: duckdb.DuckDBPyConnection, run_id: str, way: By, cost: TokenCost) -> tuple[Part, ...]:
    """The rows of a run, in the order of their keys, `unallocated` last and always there."""
    set_variables(connection, run_id=run_id, part=way)
    return parts(rows(connection, "answers/group_parts"), cost)


def parts(counted: Iterable[Mapping[str, Any]], cost: TokenCost) -> tuple[Part, ...]:
    """The rows from what each group made in each (`part`, `accepted`, `*_tokens`) and the dollars of each placement."""
    paid = cost.paid
    members: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in counted:
        members[UNALLOCATED if row["part"] is None else row["part"]].append(row)
    # Last, whatever came first, so that of equal remainders it is the last to get one.
    members[UNALLOCATED] = members.pop(UNALLOCATED, [])
    tokens = {
        place: {key: sum(int(row[f"{place}_tokens"]) for row in members_rows) for key, members_rows in members.items()}
        for place in _PLACES
    }
    nano = {place: _divide(nano_usd_of(paid[place]), tokens[place]) for place in _PLACES}
    usd_per_token = {}
    if cost.no_interval("blended") is None:
        drawn = cost.price_draws("blended")
        useful = {"borrowed": cost.useful * (cost.borrowed_share or 0)}
        useful["dedicated"] = cost.useful - useful["borrowed"]
        usd_per_token = {
            place: drawn[place] * float(useful[place] / made)
            for place in _PLACES
            if (made := sum(tokens[place].values()))
        }
    return tuple(
        Part(
            key=key,
            cost_nano_usd=sum(nano[place][key] for place in _PLACES),
            accepted=sum(int(row["accepted"]) for row in members_rows),
            interval=None if key == UNALLOCATED else _interval(members_rows, usd_per_token),
        )
        for key, members_rows in members.items()
    )


def _divide(amount: int, tokens: Mapping[str, int]) -> dict[str, int]:
    """By tokens; where none was made, nobody's."""
    return split(amount, tokens if any(tokens.values()) else {key: int(key == UNALLOCATED) for key in tokens})


def _interval(groups: list[Mapping[str, Any]], usd_per_token: Mapping[str, Floats]) -> Interval | None:
    """Dollars over accepted, by a bootstrap over the row's groups, with draws of a token's price."""
    columns = [[int(row["accepted"]), *(int(row[f"{place}_tokens"]) for place in _PLACES)] for row in groups]
    drawn = bootstrap.sums(np.array(columns, dtype=np.int64))
    if drawn is None or not usd_per_token:
        return None
    usd = sum(
        drawn[:, column] * usd_per_token[place]
        for column, place in enumerate(_PLACES, start=1)
        if place in usd_per_token
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return bootstrap.interval(usd / drawn[:, 0], len(groups))
