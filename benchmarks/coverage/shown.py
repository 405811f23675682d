"""What one simulated ledger shows of one figure: its interval beside the truth, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rose.pricing.stats.bootstrap import Floats, Interval


@dataclass(frozen=True, slots=True)
class Shown:
    """`low` None: no interval is shown, and `why` says why."""

    figure: str
    truth: float
    low: float | None
    high: float | None
    why: str | None = None
    #: Whether no interval would be honest, and none must be shown.
    never: bool = False

    @property
    def covers(self) -> bool:
        assert self.low is not None
        return self.low <= self.truth and (self.high is None or self.truth <= self.high)


#: One simulated ledger: the figures it shows.
Simulation = Callable[[np.random.Generator], Iterator[Shown]]


def shown(
    figure: str, truth: float, interval: Interval | None, why: str | None = None, *, never: bool = False
) -> Shown:
    """A figure with the interval that the product makes, if it makes one."""
    if interval is None:
        return Shown(figure, truth, None, None, why or "no interval", never)
    return Shown(figure, truth, interval.low, interval.high, never=never)


def within_range(random: np.random.Generator, low_share: float, high_share: float) -> float:
    """What a guess is really off by, where the price book's range holds it 19 times in 20: a normal on each side."""
    z = random.standard_normal() / 1.959963984540054
    return float(1 + z * ((1 - low_share) if z < 0 else (high_share - 1)))


def wandering(random: np.random.Generator, size: int, carried: float) -> Floats:
    """Standard normals of which each keeps a share of the one before."""
    own = random.standard_normal(size)
    values = np.empty(size)
    values[0] = own[0]
    for n in range(1, size):
        values[n] = carried * values[n - 1] + np.sqrt(1 - carried**2) * own[n]
    return values
