"""What lending changes, against time in which leases were withheld at random: a difference of ratios of windows' sums.

[D] For a measure y over x (dollars over requests, cached tokens over prompt tokens), lent time being all that was not
withheld: effect = Y_lent - X_lent * Y_withheld / X_withheld, summed over strata. A stratum is a device with enough
withheld windows of its own; the other devices are one together. Windows are what was randomised, so they are the
clusters: the variance of each ratio is that of cluster sampling, with Student's t by Welch and Satterthwaite for as few
of them as there are. Where y / x has a bound (a request costs at most the penalty), each ratio has Wilson's interval at
its effective number of trials, which stays sound where nothing was missed, and the two are combined by the recovery of
variances; else the interval is the plain one of Student.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rose.pricing.stats.bootstrap import Interval, student
from rose.pricing.stats.uncertainty import Clusters, Estimate, mean, ratio_variance, total, welch, wilson
from rose.pricing.stats.uncertainty import Z as NORMAL

Row = Mapping[str, Any]

#: Fewest withheld windows for an interval, and for a stratum of its own.
WINDOWS_MIN = 8
#: The stratum of devices without one of their own.
TOGETHER = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """Sums of a measure over the windows of a side; `squares` of y over single events, None where y has none."""

    x: float
    y: float
    squares: float | None
    clusters: Clusters

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Side:
        """From rows with the columns `x`, `y`, `squares`, `clusters`, `yy`, `yx` and `xx`."""
        parts = list(rows)

        def added(name: str) -> float:
            return sum(float(row[name]) for row in parts)

        squares = None if any(row["squares"] is None for row in parts) else added("squares")
        clusters = Clusters(int(added("clusters")), added("yy"), added("yx"), added("xx"))
        return cls(x=added("x"), y=added("y"), squares=squares, clusters=clusters)

    @property
    def variance(self) -> float:
        """Of y / x; 0 where a single window says nothing of it."""
        return ratio_variance(self.y, self.x, self.clusters) or 0.0


@dataclass(frozen=True, slots=True)
class Stratum:
    """Devices that are compared with their own withheld windows."""

    lent: Side
    withheld: Side

    @property
    def effect(self) -> float:
        """What lending added to y in all."""
        return self.lent.y - self.lent.x * self.withheld.y / self.withheld.x


def key_of(rows: Sequence[Row]) -> Mapping[str, str]:
    """The stratum of each device that has rows, from the same rows as `strata`."""
    windows = {row["device_id"]: int(row["clusters"]) for row in rows if row["withheld"]}
    devices = sorted({str(row["device_id"]) for row in rows})
    own = {device for device in devices if windows.get(device, 0) >= WINDOWS_MIN}
    rest = [device for device in devices if device not in own]
    if rest and sum(windows.get(device, 0) for device in rest) < WINDOWS_MIN:
        own = set()
    return {device: device if device in own else TOGETHER for device in devices}


def strata(rows: Sequence[Row]) -> dict[str, Stratum] | None:
    """Strata of one measure, by key; None where there are too few withheld windows, or nothing was lent."""
    keys = key_of(rows)
    sides: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        sides.setdefault((keys[str(row["device_id"])], bool(row["withheld"])), []).append(row)
    made: dict[str, Stratum] = {}
    for key in sorted({key for key, _ in sides}):
        lent, withheld = (Side.of(sides.get((key, side), [])) for side in (False, True))
        if withheld.clusters.count < WINDOWS_MIN or withheld.x <= 0:
            return None
        if lent.x > 0:
            made[key] = Stratum(lent, withheld)
    return made or None


def effect(compared: Mapping[str, Stratum], bound: float | None) -> Estimate:
    """What lending added to y over all strata, with its 95% interval; `bound` is the most that y / x can be."""
    parts = [
        (side, factor)
        for stratum in compared.values()
        for side, factor in ((stratum.lent, stratum.lent.x), (stratum.withheld, -stratum.lent.x))
    ]
    value = sum(stratum.effect for stratum in compared.values())
    variances = [(factor**2 * side.variance, side.clusters.count - 1) for side, factor in parts]
    freedom = welch((variance, count) for variance, count in variances if count > 0)
    if bound is None:
        return mean(value, [pair for pair in variances if pair[1] > 0])
    interval: Interval | None = total(_rate(side, bound, freedom).times(factor) for side, factor in parts)
    assert interval is not None
    assert interval.high is not None
    return Estimate(value, interval.low, interval.high)


def _rate(side: Side, bound: float, freedom: float | None) -> Estimate:
    """y / x with Wilson's interval, as a share of its bound."""
    share = min(1.0, side.y / side.x / bound)
    return Estimate(side.y / side.x, *(end * bound for end in wilson(share, _trials(side, share, bound, freedom))))


def _trials(side: Side, share: float, bound: float, freedom: float | None) -> float:
    """Yes-or-no trials that would tell as much of the share as the windows do.

    No more than single events would if they were independent; where nothing varies, each window is one trial.
    """
    spread = share * (1 - share)
    variance = side.variance / bound**2
    if spread <= 0 or variance <= 0:
        return min(side.x, float(side.clusters.count))
    trials = spread / (variance * (student(freedom or side.clusters.count - 1) / NORMAL) ** 2)
    if side.squares is None:
        return trials
    events = side.squares / side.x / bound**2 - share**2
    return min(trials, side.x * spread / events) if events > 0 else trials
