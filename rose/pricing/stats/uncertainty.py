"""95% intervals of rates and means of events in clusters, such as a device's minutes. Only clusters are independent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, sqrt

import numpy as np

from rose.pricing.stats.bootstrap import BLOCKS, Floats, Interval, expanded, normals, rounded, student

Z = 1.959963984540054  #: Standard normal quantile of a two-sided 95%.
EFFECT_MIN = 0.7  #: Half of all independent clusters have less than 1, so 1 would make intervals too wide.
Z_POWER = 0.8416212335729143  #: Standard normal quantile of 80%, the chance that a test finds a true effect.


@dataclass(frozen=True, slots=True)
class Clusters:
    """The number of clusters, and the sums over clusters of y * y, y * x and x * x. y and x are a cluster's sums."""

    count: int
    yy: float
    yx: float
    xx: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Clusters:
        return cls(len(pairs), sum(y * y for y, _ in pairs), sum(y * x for y, x in pairs), sum(x * x for _, x in pairs))


def ratio_variance(y: float, x: float, clusters: Clusters) -> float | None:
    """Return the variance of y / x over n clusters: n / (n - 1) * sum((y_k - x_k * y / x)^2) / x^2, where y_k and x_k
    are the sums of cluster k. Return None for fewer than two clusters."""
    if clusters.count < 2 or x <= 0:
        return None
    mean = y / x
    squares = max(0.0, clusters.yy - 2 * mean * clusters.yx + mean * mean * clusters.xx)
    return clusters.count / (clusters.count - 1) * squares / (x * x)


def effective_trials(successes: float, trials: float, clusters: Clusters, freedom: float | None = None) -> float:
    """Return how many independent trials tell as much as trials in clusters do (Korn and Graubard, 1998): trials / (the
    clusters' design effect * (t / z)^2), with the 97.5% quantiles t of Student's t and z of the normal distribution.
    The divisor is at least `EFFECT_MIN`. If no trial or every trial succeeded, each cluster counts as one trial."""
    rate = successes / trials
    variance = ratio_variance(successes, trials, clusters)
    if variance is None:
        return 1.0
    if not 0 < rate < 1:
        return min(trials, float(clusters.count))
    effect = variance * trials / (rate * (1 - rate)) * (student(freedom or clusters.count - 1) / Z) ** 2
    return trials / max(EFFECT_MIN, effect)


def wilson(rate: float, trials: float) -> tuple[float, float]:
    centre = (rate + Z * Z / (2 * trials)) / (1 + Z * Z / trials)
    half = Z / (1 + Z * Z / trials) * sqrt(rate * (1 - rate) / trials + Z * Z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def share_interval(successes: float, trials: float, clusters: Clusters) -> tuple[float, float]:
    """Return Wilson's interval of successes / trials. If each cluster has one trial, all trials are independent."""
    effective = float(trials) if trials == clusters.count else effective_trials(successes, trials, clusters)
    low, high = wilson(successes / trials, effective)
    return rounded(low), rounded(high)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with both ends of its interval. An exact value is equal to both ends."""

    value: float
    low: float
    high: float

    @classmethod
    def between(cls, value: Fraction | float, interval: Interval | None) -> Estimate | None:
        if interval is None or interval.high is None:
            return None
        return cls(float(value), interval.low, interval.high)

    @property
    def interval(self) -> Interval | None:
        return None if self.low == self.high else Interval(low=self.low, high=self.high)

    def times(self, factor: float) -> Estimate:
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.value * factor, low, high)

    def widened(self, low_share: float, high_share: float) -> Estimate:
        """Return the estimate with a wider interval, as if multiplied by an independent factor near 1. The 95% interval
        of this factor is `low_share` to `high_share`."""
        below, above = sorted((self.value * low_share, self.value * high_share))
        return Estimate(
            self.value,
            self.value - sqrt((self.value - self.low) ** 2 + (self.value - below) ** 2),
            self.value + sqrt((self.high - self.value) ** 2 + (above - self.value) ** 2),
        )

    def plus(self, known: float) -> Estimate:
        return Estimate(self.value + known, self.low + known, self.high + known)

    def draws(self, seed: int) -> Floats:
        """Return a random value for each resample. Values above and below `value` are normal, with their own widths."""
        return self._at(normals(seed))

    def draws_like(self, resampled: Floats) -> Floats:
        """Return values distributed as in `draws`, but in the rank order of `resampled`."""
        from scipy.special import ndtri

        place = np.argsort(np.argsort(resampled, kind="stable"), kind="stable")
        return self._at(np.asarray(ndtri((place + 0.5) / len(place)), dtype=np.float64) / expanded(BLOCKS))

    def _at(self, z: Floats) -> Floats:
        return self.value + np.where(z < 0, z * (self.value - self.low), z * (self.high - self.value))


def more_units(estimate: Estimate, units: int) -> int | None:
    """Return how many more units are needed to tell the effect from 0 at 95%, with a power of 80%. The total needed is
    units * ((z + z_power) * error / effect)^2. Return 0 if the interval excludes 0, or None if the effect is 0."""
    if estimate.low > 0 or estimate.high < 0:
        return 0
    if not estimate.value:
        return None
    error = (estimate.high - estimate.low) / (2 * Z)
    return max(1, ceil(units * ((Z + Z_POWER) * error / estimate.value) ** 2) - units)


def total(estimates: Iterable[Estimate]) -> Interval | None:
    """Return the interval of a sum of independent estimates (MOVER). Its low end is sum - sqrt(sum of (value - low)^2).
    For a difference of two rates with Wilson's intervals, this is Newcombe's interval."""
    parts = list(estimates)
    if not parts:
        return None
    value = sum(part.value for part in parts)
    below = sqrt(sum((part.value - part.low) ** 2 for part in parts))
    above = sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return Interval(low=rounded(value - below), high=rounded(value + above))


def welch(variances: Iterable[tuple[float, int]]) -> float | None:
    """Return the degrees of freedom of a sum, by Welch and Satterthwaite. `variances` has the variance and the degrees
    of freedom of each term. Return None if all variances are 0."""
    parts = list(variances)
    squares = sum(variance**2 / freedom for variance, freedom in parts)
    return sum(variance for variance, _ in parts) ** 2 / squares if squares else None


def mean(value: float, variances: Sequence[tuple[float, int]]) -> Estimate:
    """Return `value` with its Student's t interval. `value` is a sum of independent means. `variances` has the variance
    and the degrees of freedom of each mean."""
    freedom = welch(variances)
    if freedom is None:
        return Estimate(value, value, value)
    half = student(freedom) * sqrt(sum(variance for variance, _ in variances))
    return Estimate(value, value - half, value + half)
