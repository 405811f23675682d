"""The bootstrap: units (groups, probes) are drawn with replacement, and their integer columns are summed.

The draws of few units vary too little. So an interval leaves out less than 2.5% of the draws at each end: the share of
a normal distribution beyond sqrt(n / (n - 1)) * t, where n is the number of units and t is `student` (Hesterberg, 2015,
"expanded percentiles"). Neighbouring groups in time are alike, so `by_time` draws whole blocks (Carlstein, 1986). Draws
are seeded, and equal on any machine."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RESAMPLES = 2000
CONFIDENCE = 0.95
UNITS_MIN = 8  #: Fewer units give no interval: its coverage would be too low.
TOO_FEW = f"too few groups, steps or probes for an interval: need {UNITS_MIN}, more if neighbours are correlated"
BLOCKS = 10  #: Blocks that units of a time series are drawn in, as many units to each as can be.

_SEED = 0
_DRAWS_AT_ONCE = 500_000  #: Units drawn at a time, which bounds the memory of a long run.
_KEPT_UNITS = 256  #: Draws of up to so many units are kept: a table of a thousand steps repeats a few sizes.
_DIGITS = 12  #: Significant digits of results. Logarithms differ in the last digit between processors.


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A 95% interval. If `high` is None, the interval has no upper end."""

    low: float
    high: float | None

    def over(self, divisor: float) -> Interval:
        return Interval(low=self.low / divisor, high=None if self.high is None else self.high / divisor)


def sums(columns: Ints) -> Floats | None:
    """Draw as many units as there are, with replacement, and return the sum of each column. `columns` has the shape
    (units, columns), and the sums have the shape (RESAMPLES, columns). Return None for fewer than two units."""
    size = len(columns)
    if size < 2:
        return None
    # Floats multiply much faster, and hold whole numbers up to 2^53 exactly.
    assert int(np.abs(columns).max(initial=0)) * size < 2**53
    ordered = columns[np.lexsort(columns.T[::-1])].astype(np.float64)
    draws = _kept(size) if size <= _KEPT_UNITS else _drawn(size)
    return np.concatenate([np.asarray(drawn @ ordered, dtype=np.float64) for drawn in draws])


def by_time(columns: Ints, made: Ints) -> tuple[Floats | None, int]:
    """Draw blocks of neighbouring units with replacement. Return the sums of the columns in each resample, and the
    number of blocks (0: too few units). The more neighbours correlate in the columns `made`, the more units are needed.

    If neighbouring units correlate by r, blocks of g units have only 1 - 2r / (g (1 - r^2)) of the variance of
    independent blocks (batch means of an autoregression). So the draws' spread is divided by the root of that share."""
    size, count = len(columns), min(BLOCKS, len(columns))
    block = np.arange(size) * count // max(1, size)
    blocks = np.zeros((count, columns.shape[1]), dtype=np.int64)
    np.add.at(blocks, block, columns)
    alike, drawn = alikeness(made), sums(blocks)
    # An independent unit is worth (1 + r) / (1 - r) units. A block needs four times as many units, minus three.
    if drawn is None or alike >= 1 or size < BLOCKS * max(1, 4 * (1 + alike) / (1 - alike) - 3):
        return drawn, 0
    total = columns.sum(axis=0)
    wider = 1 / sqrt(1 - 2 * alike * count / size / (1 - alike**2))
    return np.maximum(total + wider * (drawn - total), 0), count


def alikeness(made: Ints) -> float:
    """Return the largest correlation between a unit and the next one. Each column of `made` is tried in two ways: as it
    is, and as its share of the unit's total."""
    size, most, total = len(made), 0.0, made.sum(axis=1, keepdims=True)
    away = np.hstack([made - made.mean(axis=0), made - total * (made.sum(axis=0) / max(1, total.sum()))])
    for column in away.T[np.any(np.abs(away) > 1e-6, axis=0)]:
        most = max(most, float(column[1:] @ column[:-1] / (column @ column)) + 1 / size)
    return most


def drawn_clusters(places: int) -> Ints:
    """Draw cluster numbers from 0 to `places` - 1, with replacement. Return an array of shape (RESAMPLES, places)."""
    return np.random.default_rng(_SEED).integers(places, size=(RESAMPLES, places))


def interval(values: Floats, units: int, freedom: int | None = None) -> Interval | None:
    """Return the interval of the middle 95% of resampled values, wider for few units or few degrees of `freedom` (None:
    `units` - 1). NaN counts as infinity. Return None for less than `UNITS_MIN` units, or if the low end is infinite."""
    from scipy.special import ndtr

    if units < UNITS_MIN:
        return None
    ordered = np.sort(np.where(np.isnan(values), np.inf, values))
    tail = float(ndtr(-expanded(units, freedom)))
    low, high = ordered[int(tail * len(ordered))], ordered[int((1 - tail) * len(ordered)) - 1]
    if not np.isfinite(low):
        return None
    return Interval(low=rounded(low), high=rounded(high) if np.isfinite(high) else None)


def expanded(units: int, freedom: int | None = None) -> float:
    """Return half the width of a 95% interval for the mean of normal units, in standard deviations of the draws."""
    return sqrt(units / (units - 1)) * student(freedom or units - 1)


@functools.lru_cache(maxsize=8)
def normals(seed: int) -> Floats:
    """Return normal draws whose 95% interval, `interval(draws, BLOCKS)`, is -1 to 1. Multiply them by half of an
    estimate's own interval, to combine the estimate with draws of `by_time`."""
    drawn = np.random.default_rng(seed).standard_normal(RESAMPLES) / expanded(BLOCKS)
    drawn.flags.writeable = False
    return drawn


@functools.lru_cache(maxsize=4096)
def student(freedom: float) -> float:
    """Return the 97.5% quantile of Student's t. The middle 95% lies between minus and plus this value."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def rounded(value: float) -> float:
    """Round to so few digits that the result is the same on every machine."""
    return float(f"{value:.{_DIGITS}g}")


def _drawn(size: int) -> Iterator[Floats]:
    random = np.random.default_rng(_SEED)
    block = max(1, min(RESAMPLES, _DRAWS_AT_ONCE // size))
    for start in range(0, RESAMPLES, block):
        drawn = random.integers(size, size=(min(block, RESAMPLES - start), size))
        yield np.array([np.bincount(units, minlength=size) for units in drawn], dtype=np.float64)


@functools.lru_cache(maxsize=32)
def _kept(size: int) -> Sequence[Floats]:
    return tuple(_drawn(size))
