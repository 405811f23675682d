"""Rollout tokens by placement and fate, and how uncertain the price of a token is.

A token counts once, on the engine that made it: generated = accepted + rejected + stale + lost + open. Accepted,
rejected and open tokens are useful. Stale and lost tokens are waste. [D] The price is dollars over tokens.

The run's time is divided into equal blocks, which count as independent (batch means: Law, Simulation Modeling and
Analysis, ch. 9). The variance is that of a ratio under cluster sampling, with Student's t. It is the larger one of
blocks and of pairs of neighbouring blocks, which may be alike. The dollars of a block are its rollout time at the mean
price of each device class."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Any

import duckdb

from rose.pricing.query import rows, set_variables
from rose.pricing.stats.bootstrap import Floats, normals, student
from rose.pricing.stats.uncertainty import Clusters, ratio_variance

FATES: tuple[str, ...] = ("accepted", "rejected", "stale", "lost", "open")
#: In order: made on serving devices; on rollout or train devices; on a device not in the ledger, so without a price.
PLACEMENTS: tuple[str, ...] = ("borrowed", "dedicated", "unallocated")
BLOCKS = 10
BLOCKS_MIN = 5  #: Blocks with work in them below which nothing is known of the spread.
UNKNOWN = f"the run is too short: rollouts must run in {BLOCKS_MIN} stretches of it"


@dataclass(frozen=True, slots=True)
class Tokens:
    by_fate: Mapping[str, int]

    @property
    def generated(self) -> int:
        return sum(self.by_fate.values())

    @property
    def wasted(self) -> int:
        return self.by_fate["stale"] + self.by_fate["lost"]

    @property
    def useful(self) -> int:
        return self.generated - self.wasted

    @property
    def wasted_share(self) -> Fraction | None:
        """Return w = wasted / generated, or None without tokens."""
        return Fraction(self.wasted, self.generated) if self.generated else None


def count(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Tokens]:
    set_variables(connection, run_id=run_id)
    counts = {(row["placement"], row["fate"]): int(row["tokens"]) for row in rows(connection, "run/token_fates")}
    return {placement: Tokens({fate: counts.get((placement, fate), 0) for fate in FATES}) for placement in PLACEMENTS}


@dataclass(frozen=True, slots=True)
class Spread:
    """The relative standard error of a token's price, and the degrees of freedom of this error."""

    relative: float
    freedom: int

    def draws(self, seed: int) -> Floats:
        """Return random factors around 1, one for each resample."""
        return 1 + self.relative * student(self.freedom) * normals(seed)


def spreads(blocks: Iterable[Mapping[str, Any]], usd_per_ns: Mapping[tuple[str, str], float]) -> dict[str, Spread]:
    """Return the spreads of `borrowed`, `dedicated`, and `loaded`. The last one counts all time of dedicated devices.

    `blocks` has the rows of `rollout_blocks`, and `usd_per_ns` the mean price by (placement, device class). A placement
    is left out if fewer than `BLOCKS_MIN` blocks have tokens."""
    sums: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for row in blocks:
        price = usd_per_ns.get((row["placement"], row["device_class"]), 0.0)
        times = {row["placement"]: row["rollout_ns"]}
        if row["placement"] == "dedicated":
            times["loaded"] = row["ns"]
        for name, ns in times.items():
            block = sums[name][row["block"]]
            block[0] += ns * price
            block[1] += row["tokens"]
    made = {name: _spread(of_blocks) for name, of_blocks in sums.items()}
    return {name: spread for name, spread in made.items() if spread is not None}


def _spread(sums: Mapping[int, Sequence[float]]) -> Spread | None:
    pairs: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for block, (y, x) in sums.items():
        pairs[block // 2][0] += y
        pairs[block // 2][1] += x
    worked = [(y, x) for y, x in sums.values() if y or x]
    y, x = (sum(column) for column in zip(*worked, strict=True)) if worked else (0.0, 0.0)
    if len(worked) < BLOCKS_MIN or not y or not x:
        return None
    doubled = [(y, x) for y, x in pairs.values() if y or x]
    variance = max(ratio_variance(y, x, Clusters.of(each)) or 0.0 for each in (worked, doubled))
    return Spread(sqrt(variance) * x / y, len(worked) - 1)
