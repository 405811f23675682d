"""Intervals of rates and means over events that come together: misses of a burst, power readings of a minute.

All are at 95%. Clusters (a minute of a device) are taken as independent of each other, events within one are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from rose.pricing.bootstrap import Interval, rounded

#: Standard normal quantile of a two-sided 95%.
Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Clusters:
    """How many clusters there are, and sums over them of y * y, y * x and x * x."""

    count: int
    yy: float
    yx: float
    xx: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Clusters:
        """From the columns `clusters`, `yy`, `yx` and `xx`."""
        return cls(int(row["clusters"]), float(row["yy"]), float(row["yx"]), float(row["xx"]))


def ratio_variance(y: float, x: float, clusters: Clusters) -> float | None:
    """Variance of y / x, both summed over clusters: n / (n - 1) * sum of (y_k - x_k * y / x)^2 / x^2.

    The textbook estimator for a ratio under cluster sampling. None for fewer than two clusters.
    """
    if clusters.count < 2 or x <= 0:
        return None
    mean = y / x
    squares = max(0.0, clusters.yy - 2 * mean * clusters.yx + mean * mean * clusters.xx)
    return clusters.count / (clusters.count - 1) * squares / (x * x)


def effective_trials(successes: float, trials: float, clusters: Clusters) -> float:
    """Independent trials that would tell as much: trials over the design effect, which is at least 1."""
    rate = successes / trials
    variance = ratio_variance(successes, trials, clusters)
    if variance is None or not 0 < rate < 1:
        return trials
    return trials / max(1.0, variance * trials / (rate * (1 - rate)))


def wilson(rate: float, trials: float) -> tuple[float, float]:
    """Wilson's score interval of a rate; never empty, and sound where nothing or everything succeeded."""
    centre = (rate + Z * Z / (2 * trials)) / (1 + Z * Z / trials)
    half = Z / (1 + Z * Z / trials) * sqrt(rate * (1 - rate) / trials + Z * Z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the ends of its own interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Scaled; a negative factor turns the interval round."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.value * factor, low, high)


def total(estimates: Iterable[Estimate]) -> Interval | None:
    """Interval of a sum of independent estimates, from theirs (the method of variance estimates recovery, MOVER).

    low = sum - sqrt(sum of (value - low)^2), and the same upwards. With Wilson's intervals of two rates, one negated,
    this is Newcombe's interval of their difference. None for no estimates.
    """
    parts = list(estimates)
    if not parts:
        return None
    value = sum(part.value for part in parts)
    below = sqrt(sum((part.value - part.low) ** 2 for part in parts))
    above = sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return Interval(low=rounded(value - below), high=rounded(value + above))


def normal(value: float, variance: float) -> Estimate:
    """A mean with its normal interval."""
    half = Z * sqrt(variance)
    return Estimate(value, value - half, value + half)
