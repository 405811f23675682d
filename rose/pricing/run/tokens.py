"""Rollout tokens by placement and fate, and how uncertain the price of a token is.

A token counts once, on the engine that made it: generated = accepted + rejected + stale + lost + open. Stale and lost
tokens are wasted, and the others are useful. [D] A token's price is dollars / tokens.

To find how uncertain the price is, the run's time is divided into equal blocks, which count as independent (batch
means: Law, Simulation Modeling and Analysis, ch. 9). A block's dollars are its rollout time at the mean price of each
device class. The price has the variance of a ratio under cluster sampling, and Student's t interval. Neighbouring
blocks may be correlated. So the larger of two variances is used: of blocks, and of pairs of neighbouring blocks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Any

import duckdb
import polars as pl

from rose.pricing.charges import Charges
from rose.pricing.charges.allocation import shared
from rose.pricing.money import NANO_USD_PER_USD
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
        return Fraction(self.wasted, self.generated) if self.generated else None


def count(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Tokens]:
    set_variables(connection, run_id=run_id)
    counts = {(row["placement"], row["fate"]): int(row["tokens"]) for row in rows(connection, "run/token_fates")}
    return {placement: Tokens({fate: counts.get((placement, fate), 0) for fate in FATES}) for placement in PLACEMENTS}


@dataclass(frozen=True, slots=True)
class Spread:
    """The relative standard error of a token's price, and its degrees of freedom."""

    relative: float
    freedom: int

    def draws(self, seed: int) -> Floats:
        return 1 + self.relative * student(self.freedom) * normals(seed)


def spreads(blocks: Iterable[Mapping[str, Any]], usd_per_ns: Mapping[tuple[str, str], float]) -> dict[str, Spread]:
    """Return how uncertain these token prices are: `borrowed`, `dedicated`, `loaded` (all time of dedicated devices).

    `usd_per_ns` has mean prices by (placement, device class). A spread needs work in at least `BLOCKS_MIN` blocks."""
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


USEFUL = ("accepted", "rejected", "open")
_FATES = {"generated": (*USEFUL, "stale", "lost"), "useful": USEFUL, "stale": ("stale",)}
_EXACT = ("measured_ns", "hardware_ns", "usd", "unshared_usd")


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutOutput:
    rollout_ns: int
    measured_ns: Fraction  #: Time that the run measured; above the billed time if other runs held the device too.
    hardware_ns: Fraction  #: Hardware time for this run; less than `measured_ns` if several runs worked on the device.
    usd: Fraction
    unshared_usd: Fraction  #: Price of `hardware_ns` on a device that nobody shares.
    generated: int
    useful: int
    stale: int


def rollout_outputs(charges: Charges) -> dict[tuple[str, str], RolloutOutput]:
    tokens = (pl.col("tokens").filter(pl.col("fate").is_in(fates)).sum().alias(name) for name, fates in _FATES.items())
    rollout = charges.frame.filter((pl.col("kind") == "capacity") & (pl.col("bucket") == "rollout"))
    summed = rollout.group_by("pool", "device_class").agg(pl.col("ns", "cost_nano").sum(), *tokens)
    beyond: dict[tuple[str, str], list[Fraction]] = defaultdict(lambda: [Fraction(0)] * 3)
    for time in shared(charges):
        if time.bucket == "rollout":
            more = time.others_ns, (time.hardware_share - 1) * time.ns, (time.hardware_share - 1) * time.cost_nano
            key = time.pool, time.device_class
            beyond[key] = [one + other for one, other in zip(beyond[key], more, strict=True)]
    by_class = {}
    for pool, device_class, ns, nano, *counts in summed.sort("pool", "device_class").iter_rows():
        others_ns, hardware_ns, hardware_nano = beyond[pool, device_class]
        by_class[pool, device_class] = RolloutOutput(
            rollout_ns=ns,
            measured_ns=ns + others_ns,
            hardware_ns=ns + hardware_ns,
            usd=Fraction(nano, NANO_USD_PER_USD),
            unshared_usd=(nano + hardware_nano) / NANO_USD_PER_USD,
            **dict(zip(_FATES, counts, strict=True)),
        )
    return by_class


def together(parts: Sequence[RolloutOutput]) -> RolloutOutput:
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in RolloutOutput.__slots__}
    for name in _EXACT:
        sums[name] = Fraction(sums[name])
    return RolloutOutput(**sums)
