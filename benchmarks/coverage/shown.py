"""One figure of a simulated ledger: its interval beside the truth, or the reason for having none."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rose.pricing.stats.bootstrap import Floats, Interval


@dataclass(frozen=True, slots=True)
class Shown:
    """Without an interval `low` is None, and `why` has the reason."""

    figure: str
    truth: float
    low: float | None
    high: float | None
    why: str | None = None
    never: bool = False  #: No interval may be shown: it would be dishonest.

    @property
    def covers(self) -> bool:
        assert self.low is not None
        return self.low <= self.truth and (self.high is None or self.truth <= self.high)


Simulation = Callable[[np.random.Generator], Iterator[Shown]]  #: Simulates one ledger, and yields its figures.


def shown(
    figure: str, truth: float, interval: Interval | None, why: str | None = None, *, never: bool = False
) -> Shown:
    if interval is None:
        return Shown(figure, truth, None, None, why or "no interval", never)
    return Shown(figure, truth, interval.low, interval.high, never=never)


def within_range(random: np.random.Generator, low_share: float, high_share: float) -> float:
    """Return truth over guess; a price book's range contains the truth 19 times in 20."""
    z = random.standard_normal() / 1.959963984540054
    return float(1 + z * ((1 - low_share) if z < 0 else (high_share - 1)))


def summed(x: Any, y: Any, squares: float | None = None) -> dict[str, Any]:
    """Return the columns of a query that sums windows: y over x, and their spread."""
    products = {"yy": float(y @ y), "yx": float(y @ x), "xx": float(x @ x)}
    return {"clusters": len(x), "x": float(x.sum()), "y": float(y.sum()), "squares": squares} | products


def wandering(random: np.random.Generator, size: int, carried: float) -> Floats:
    """Return standard normals, each correlated by `carried` with the one before."""
    own = random.standard_normal(size)
    values = np.empty(size)
    values[0] = own[0]
    for n in range(1, size):
        values[n] = carried * values[n - 1] + np.sqrt(1 - carried**2) * own[n]
    return values
