"""The cost per accepted trajectory by policy version, task or step of a run. Tokens have the "blended" price. The row
`unallocated` has the cost of tokens without a known version, task or step. If borrowed time made no token, its
cost is in this row too. The same holds for dedicated time."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import duckdb
import numpy as np

from rose.pricing.money import NANO_USD_PER_USD, nano_usd_of, split
from rose.pricing.query import rows, set_variables
from rose.pricing.run.cost_per_correct import TokenCost
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats, Interval, Ints

UNALLOCATED = "unallocated"
By = Literal["version", "task", "step"]
_PLACES = ("borrowed", "dedicated")


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    key: str
    cost_nano_usd: int
    accepted: int
    interval: Interval | None

    @property
    def usd_per_accepted(self) -> Fraction | None:
        if not self.accepted or self.key == UNALLOCATED:
            return None
        return Fraction(self.cost_nano_usd, NANO_USD_PER_USD * self.accepted)


def by(connection: duckdb.DuckDBPyConnection, run_id: str, way: By, cost: TokenCost) -> tuple[BreakdownRow, ...]:
    """Return the rows, sorted by version, task or step, then the row `unallocated`. The rows sum to the run's cost."""
    set_variables(connection, run_id=run_id, part=way)
    return parts(rows(connection, "answers/group_parts"), cost)


def parts(counted: Iterable[Mapping[str, Any]], cost: TokenCost) -> tuple[BreakdownRow, ...]:
    """Return a row for each version, task or step (`part`). The last row, `unallocated`, sums groups without a part."""
    paid = cost.paid
    groups: dict[str, list[list[int]]] = defaultdict(list)
    for row in counted:
        counts = [int(row[name]) for name in ("accepted", *(f"{place}_tokens" for place in _PLACES))]
        groups[UNALLOCATED if row["part"] is None else row["part"]].append(counts)
    # Last, so that it comes last among equal remainders.
    groups[UNALLOCATED] = groups.pop(UNALLOCATED, [[0, 0, 0]])
    sums = {key: [sum(column) for column in zip(*members, strict=True)] for key, members in groups.items()}
    tokens = {place: {key: total[n] for key, total in sums.items()} for n, place in enumerate(_PLACES, start=1)}
    nobody = {key: int(key == UNALLOCATED) for key in groups}
    nano = {
        place: split(nano_usd_of(paid[place]), made if any(made.values()) else nobody) for place, made in tokens.items()
    }
    usd_per_token = {}
    if cost.no_interval("blended") is None:
        draws = cost.price_draws("blended")
        useful = {"borrowed": cost.useful * (cost.borrowed_share or 0)}
        useful["dedicated"] = cost.useful - useful["borrowed"]
        usd_per_token = {
            place: draws[place] * float(useful[place] / made)
            for place in _PLACES
            if (made := sum(tokens[place].values()))
        }
    lines = []
    for key, members in groups.items():
        interval = None if key == UNALLOCATED else _interval(np.array(members, dtype=np.int64), usd_per_token)
        lines.append(BreakdownRow(key, sum(nano[place][key] for place in _PLACES), sums[key][0], interval))
    return tuple(lines)


def _interval(counts: Ints, usd_per_token: Mapping[str, Floats]) -> Interval | None:
    resamples, units = bootstrap.by_time(counts, counts[:, 1:])
    if resamples is None or not usd_per_token:
        return None
    tokens = dict(zip(_PLACES, resamples.T[1:], strict=True))
    usd = sum(tokens[place] * price for place, price in usd_per_token.items())
    with np.errstate(divide="ignore", invalid="ignore"):
        return bootstrap.interval(usd / resamples[:, 0], units)
