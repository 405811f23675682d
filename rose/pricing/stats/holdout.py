"""The effect of lending, compared with time in which leases were withheld at random.

[D] y is a measure, such as late requests, and x is its base, such as requests. Y and X are their sums. The effect on y
is Y_lent - X_lent * Y_withheld / X_withheld, summed over strata. Each device with enough withheld windows is a stratum,
and all other devices together are one stratum. Windows were drawn at random, so they are the clusters. The rate of
withheld windows, Y_withheld / X_withheld, has Student's t interval (Welch and Satterthwaite). A rate with a largest
possible value (`bound`) has Wilson's interval instead. `uncertainty.total` combines the strata (MOVER)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from rose.pricing.stats.bootstrap import student
from rose.pricing.stats.uncertainty import Clusters, Estimate, mean, more_units, ratio_variance, total, welch, wilson
from rose.pricing.stats.uncertainty import Z as NORMAL

Row = Mapping[str, Any]

WINDOWS_MIN = 8  #: Fewest withheld windows for an interval, and for a stratum of its own.
LENT_SHARE = 1 / 3  #: Share of a withheld rate's variance from lent windows; simulated in `benchmarks.coverage`.
TOGETHER = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """Sums over lent or withheld windows. `squares` sums y^2 over requests. It is None if requests have no y."""

    x: float
    y: float
    squares: float | None
    clusters: Clusters

    @classmethod
    def from_rows(cls, rows: Iterable[Row]) -> Side:
        parts = list(rows)
        x, y, count, yy, yx, xx = (
            sum(float(row[name]) for row in parts) for name in ("x", "y", "clusters", "yy", "yx", "xx")
        )
        squares = None if any(row["squares"] is None for row in parts) else sum(float(row["squares"]) for row in parts)
        return cls(x=x, y=y, squares=squares, clusters=Clusters(int(count), yy, yx, xx))

    @property
    def variance(self) -> float:
        """Return the variance of y / x. It is 0 for a single window."""
        return ratio_variance(self.y, self.x, self.clusters) or 0.0


@dataclass(frozen=True, slots=True)
class Stratum:
    lent: Side
    withheld: Side

    @property
    def variance(self) -> float:
        return self.lent.x**2 * self.withheld.variance * (1 + self.withheld.x / self.lent.x)

    @property
    def effect(self) -> float:
        return self.lent.y - self.lent.x * self.withheld.y / self.withheld.x


def key_of(rows: Sequence[Row]) -> Mapping[str, str]:
    windows = {row["device_id"]: int(row["clusters"]) for row in rows if row["withheld"]}
    devices = sorted({str(row["device_id"]) for row in rows})
    own = {device for device in devices if windows.get(device, 0) >= WINDOWS_MIN}
    rest = [device for device in devices if device not in own]
    if rest and sum(windows.get(device, 0) for device in rest) < WINDOWS_MIN:
        own = set()
    return {device: device if device in own else TOGETHER for device in devices}


def too_few(windows: int) -> str:
    return (
        f"{windows:,} windows in which leases were withheld at random; need {WINDOWS_MIN}: "
        f"{WINDOWS_MIN - windows} more would tell"
    )


def more_windows(compared: Mapping[str, Stratum], bound: float | None) -> int | None:
    """Return how many more withheld windows are needed to tell the effect from chance. `more_units` has the formula."""
    return more_units(effect(compared, bound), sum(part.withheld.clusters.count for part in compared.values()))


def would_tell(windows: int | None) -> str:
    if windows == 0:
        return ""
    count = "no number of" if windows is None else f"{windows:,}"
    return f"; {count} more withheld windows would tell it from chance"


def strata(rows: Sequence[Row]) -> dict[str, Stratum] | None:
    """Return the strata of a measure, or None if there are too few withheld windows or nothing was lent."""
    keys = key_of(rows)
    sides: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        sides.setdefault((keys[str(row["device_id"])], bool(row["withheld"])), []).append(row)
    made: dict[str, Stratum] = {}
    for key in sorted({key for key, _ in sides}):
        lent, withheld = (Side.from_rows(sides.get((key, side), [])) for side in (False, True))
        if withheld.clusters.count < WINDOWS_MIN or withheld.x <= 0:
            return None
        if lent.x > 0:
            made[key] = Stratum(lent, withheld)
    return made or None


def effect(compared: Mapping[str, Stratum], bound: float | None) -> Estimate:
    """Return the effect of lending on y, with its 95% interval (see the module for y, x, Y and X). `bound` is the
    largest possible y / x, or None. The effect's variance is X_lent^2 * (1 + X_withheld / X_lent) * the variance of the
    rate Y_withheld / X_withheld."""
    parts = list(compared.values())
    value = sum(part.effect for part in parts)
    variances = [(part.variance, part.withheld.clusters.count - 1) for part in parts]
    freedom = welch(variances)
    if bound is None:
        return mean(value, variances)
    interval = total(
        Estimate(part.effect, part.lent.y - part.lent.x * high, part.lent.y - part.lent.x * low)
        for part in parts
        for low, high in (_ends(part, bound, freedom),)
    )
    assert interval is not None
    assert interval.high is not None
    return Estimate(value, interval.low, interval.high)


def _ends(part: Stratum, bound: float, freedom: float | None) -> tuple[float, float]:
    """Return both ends of a 95% interval for the rate y / x of withheld windows. Wilson's interval of rate / `bound` is
    widened by the factor sqrt(1 + X_withheld / X_lent), as the variance in `effect` requires."""
    side = part.withheld
    rate = side.y / side.x
    wider = sqrt(1 + side.x / part.lent.x)
    low, high = wilson(min(1.0, rate / bound), _trials(part, bound, freedom))
    return rate - (rate - low * bound) * wider, rate + (high * bound - rate) * wider


def _trials(part: Stratum, bound: float, freedom: float | None) -> float:
    """Return how many independent trials would tell as much about the rate as the withheld windows do. A few windows
    may vary too little by chance. So a part of the variance is taken from lent windows, if this gives fewer trials."""
    side = part.withheld
    share = min(1.0, side.y / side.x / bound)
    spread, variance = share * (1 - share), side.variance / bound**2
    if spread <= 0 or variance <= 0:
        return min(side.x, float(side.clusters.count))
    trials = spread / (variance * (student(freedom or side.clusters.count - 1) / NORMAL) ** 2)
    by_lent = _trials_by_lent(part, bound)
    return trials if by_lent is None else min(trials, 1 / ((1 - LENT_SHARE) / trials + LENT_SHARE / by_lent))


def _trials_by_lent(part: Stratum, bound: float) -> float | None:
    lent, withheld = part.lent, part.withheld
    if lent.squares is None:
        return None
    share = lent.y / lent.x / bound
    single = lent.squares / lent.x / bound**2 - share**2
    size = lent.clusters.xx / lent.x
    if single <= 0 or size <= 1:
        return None
    correlation = max(0.0, (lent.variance / bound**2 * lent.x / single - 1) / (size - 1))
    clumped = 1 + (withheld.clusters.xx / withheld.x - 1) * correlation
    return withheld.x * share * (1 - share) / single / max(1.0, clumped)
