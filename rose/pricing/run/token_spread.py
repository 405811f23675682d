"""How well the price of a rollout token is known, from how evenly tokens were made over the run.

[D] The price is dollars over tokens. The run's time is cut into equal blocks, which are taken as independent of each
other (batch means: Law, Simulation Modeling and Analysis, ch. 9); the variance of a ratio of their sums is that of
cluster sampling, with Student's t for the few blocks there are. The dollars of a block are its rollout time at the
mean price of each class of device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from rose.pricing.stats.bootstrap import RESAMPLES, Floats
from rose.pricing.stats.uncertainty import Clusters, ratio_variance

BLOCKS = 10
#: Blocks with work in them below which nothing is known of the spread.
BLOCKS_MIN = 5
UNKNOWN = f"rollouts ran in too few stretches of the run to tell how steady a token's price was: it takes {BLOCKS_MIN}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard error of a price of a token over the price itself, and its degrees of freedom."""

    relative: float
    freedom: int

    def draws(self, seed: int) -> Floats:
        """Factors around 1, as many as a bootstrap has resamples."""
        return 1 + self.relative * np.random.default_rng(seed).standard_t(self.freedom, RESAMPLES)


def spreads(blocks: Iterable[Mapping[str, Any]], usd_per_ns: Mapping[tuple[str, str], float]) -> dict[str, Spread]:
    """By placement, `borrowed` and `dedicated`, and `loaded` for all time of the dedicated devices.

    `blocks` are rows of `rollout_blocks`, `usd_per_ns` the mean price by (placement, device class). A placement without
    tokens, or with work in fewer than `BLOCKS_MIN` blocks, is left out.
    """
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
    made = {name: _spread([(y, x) for y, x in of_blocks.values() if y or x]) for name, of_blocks in sums.items()}
    return {name: spread for name, spread in made.items() if spread is not None}


def _spread(pairs: list[tuple[float, float]]) -> Spread | None:
    y, x = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    if len(pairs) < BLOCKS_MIN or not y or not x:
        return None
    products = (sum(a * a for a, _ in pairs), sum(a * b for a, b in pairs), sum(b * b for _, b in pairs))
    variance = ratio_variance(y, x, Clusters(len(pairs), *products))
    assert variance is not None
    return Spread(sqrt(variance) * x / y, len(pairs) - 1)
