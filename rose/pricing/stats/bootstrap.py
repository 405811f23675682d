"""The bootstrap: how far a figure would have moved with other groups, or other probes, of the same kind.

Units (groups, probes) are drawn with replacement, as many as there are, again and again, and their integer columns
summed; a figure worked out of each draw's sums spreads as the figure itself does. The draws of few units spread too
little, by sqrt((n - 1) / n), and a normal's tails are too short for them: the ends of an interval are taken further
out, at the share of a normal beyond sqrt(n / (n - 1)) * t (Hesterberg, 2015, "expanded percentiles"). Seeded, and
summed in integers in an order of its own: the same units give the same sums on any machine, in whatever order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RESAMPLES = 2000
CONFIDENCE = 0.95
#: Units below which an interval does not cover what it claims, and none is given.
UNITS_MIN = 8
TOO_FEW = f"too few groups, steps or probes for an interval: it takes {UNITS_MIN}"

_SEED = 0
#: Units drawn at a time: bounds the memory of a long run, and stays near the processor's cache.
_DRAWS_AT_ONCE = 500_000
#: Draws of so few units are kept: a table of a thousand steps asks for the same few sizes again and again.
_KEPT_UNITS = 256
#: Significant digits of what is worked out of the sums. Logarithms differ in the last digit between processors.
_DIGITS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A 95% interval; `high` is None where too many resamples had nothing to divide by, and so no bound."""

    low: float
    high: float | None

    def holds(self, value: float) -> bool:
        """Whether a value lies in it, ends included."""
        return self.low <= value and (self.high is None or value <= self.high)

    def over(self, divisor: float) -> Interval:
        """The interval of a quotient, for a divisor above 0 that is known exactly."""
        return Interval(low=self.low / divisor, high=None if self.high is None else self.high / divisor)


def sums(columns: Ints) -> Floats | None:
    """Sums of integer columns over resampled units: (units, columns) to (RESAMPLES, columns).

    None for fewer than two units: one unit drawn again is itself. The order of the units makes no difference.
    """
    size = len(columns)
    if size < 2:
        return None
    # Floats multiply much faster, and hold whole numbers up to 2^53, past any sum here, without loss in any order.
    assert int(np.abs(columns).max(initial=0)) * size < 2**53
    ordered = columns[np.lexsort(columns.T[::-1])].astype(np.float64)
    return np.concatenate([np.asarray(drawn @ ordered, dtype=np.float64) for drawn in _drawn(size)])


def drawn_clusters(places: int) -> Ints:
    """Which cluster is at each place of each draw: (RESAMPLES, places)."""
    return np.random.default_rng(_SEED).integers(places, size=(RESAMPLES, places))


def interval(values: Floats, units: int) -> Interval | None:
    """The middle 95% of resampled values, expanded for the number of units that were drawn.

    Undefined values (nothing to divide by) count as the highest. None for fewer than `UNITS_MIN` units.
    """
    from scipy.special import ndtr

    if units < UNITS_MIN:
        return None
    ordered = np.sort(np.where(np.isnan(values), np.inf, values))
    tail = float(ndtr(-sqrt(units / (units - 1)) * student(units - 1)))
    low, high = ordered[int(tail * len(ordered))], ordered[int((1 - tail) * len(ordered)) - 1]
    if not np.isfinite(low):
        return None
    return Interval(low=rounded(low), high=rounded(high) if np.isfinite(high) else None)


@functools.lru_cache(maxsize=4096)
def student(freedom: float) -> float:
    """Quantile of Student's t of a two-sided 95%."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def rounded(value: float) -> float:
    """To as many digits as are the same on any machine."""
    return float(f"{value:.{_DIGITS}g}")


def _drawn(size: int) -> Iterator[Floats]:
    """How often each unit is drawn, in blocks of resamples: (resamples, size)."""
    if size <= _KEPT_UNITS:
        yield _kept(size)
        return
    random = np.random.default_rng(_SEED)
    block = max(1, min(RESAMPLES, _DRAWS_AT_ONCE // size))
    for start in range(0, RESAMPLES, block):
        yield _times_drawn(random, min(block, RESAMPLES - start), size)


@functools.lru_cache(maxsize=32)
def _kept(size: int) -> Floats:
    return _times_drawn(np.random.default_rng(_SEED), RESAMPLES, size)


def _times_drawn(random: np.random.Generator, resamples: int, size: int) -> Floats:
    drawn = random.integers(size, size=(resamples, size))
    times = np.empty((resamples, size))
    for row, units in zip(times, drawn, strict=True):
        row[:] = np.bincount(units, minlength=size)
    return times
