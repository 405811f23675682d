"""Days that cost other than the days before them.

[D] A day is compared with the charged days, 7 at least, of the 28 days before it. It stands out where it lies more than
3.5 robust deviations from their median: a deviation is 1.4826 * MAD (the median distance from the median; the factor
makes it the standard deviation of a normal spread), and at least 1% of the median, so that days that are all alike flag
no trifle. The change is the difference to the newest day that has the median itself (the lower of two), so that
`rose changes` explains it: both are real days.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path
from statistics import median_low
from typing import Any

import polars as pl

from rose.pricing.charges.loaded import WASTED
from rose.pricing.closing.bill import Bill, bill
from rose.pricing.closing.period import NS_PER_DAY, Period, of_day
from rose.pricing.figures import AMORTIZED, Figure, Stamp
from rose.pricing.money import signed_usd
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook

#: A day is judged by the charged days among those of this many days before it, if they are enough.
DAYS_BEFORE, DAYS_MIN = 28, 7
THRESHOLD = 3.5
_SCALE = 1.4826
_SCALE_SHARE_MIN = 0.01
_MILLION = 10**6
#: Changes closer to nothing than this, nano-dollars, are not written out.
_TINY_NANO = 100
#: Fates of tokens that reached the trainer or still may.
_USEFUL = ("accepted", "rejected", "open")
RULE = (
    f"a day stands out if it lies more than {THRESHOLD} robust deviations (1.4826 x MAD, at least 1% of the median) "
    f"from the median of the charged days, {DAYS_MIN} at least, of the {DAYS_BEFORE} days before it"
)


@dataclass(frozen=True, slots=True)
class Metric:
    """What is watched: the cost of some rows, as it is or for each million useful tokens."""

    name: str
    rows: pl.Expr
    per_token: bool = False

    @property
    def unit(self) -> str:
        return "nano_usd/million useful tokens" if self.per_token else "nano_usd"


METRICS: tuple[Metric, ...] = (
    Metric("cost", pl.lit(True)),
    Metric("waste", WASTED),
    Metric("idle", pl.col("bucket") == "idle"),
    Metric("cost per million useful tokens", pl.col("bucket") == "rollout", per_token=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Anomaly:
    """A metric of a day that stands out from `median`, its value on the day `compared_with`.

    `deviations` is None where all days before were alike at 0, so that there is nothing to measure by.
    """

    day: date
    metric: str
    value: Figure
    median: Figure
    compared_with: date
    deviations: float | None

    @property
    def change_nano(self) -> int:
        """The value less the median, in the metric's unit."""
        assert isinstance(self.value.value, int)
        assert isinstance(self.median.value, int)
        return self.value.value - self.median.value

    @property
    def why(self) -> str:
        """The command that says what drove the change of the day's cost."""
        return f"rose changes --period {self.day} --before {self.compared_with}"

    def to_json(self) -> dict[str, Any]:
        return {
            "day": str(self.day),
            "metric": self.metric,
            "value": self.value.to_json(),
            "median": self.median.to_json(),
            "compared_with": str(self.compared_with),
            "deviations": self.deviations,
            "change_nano": self.change_nano,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """Days that were judged, and what stood out; days without enough days before them are in `not_judged`."""

    stamp: Stamp
    judged: tuple[date, ...]
    not_judged: tuple[date, ...]
    anomalies: tuple[Anomaly, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.stamp.to_json(),
            "rule": RULE,
            "judged": [str(day) for day in self.judged],
            "not_enough_data": [str(day) for day in self.not_judged],
            "anomalies": [anomaly.to_json() for anomaly in self.anomalies],
        }


@dataclass(frozen=True, slots=True)
class _Day:
    """One metric of one day: `value` nano-dollars (for each million useful tokens), exact."""

    day: date
    value: Fraction


def find(
    root: Path,
    judged: Period,
    price_book: str | PriceBook | None = None,
    *,
    provenance: str | None = None,
    allow_unverified: bool = False,
) -> Watch:
    """Return the days of a ledger that stand out.

    Raises PricingError where the days, or those they are compared with, cannot be priced; LedgerError.
    """
    period = Period(judged.from_ns - DAYS_BEFORE * NS_PER_DAY, judged.to_ns)
    book = choice.choose(root, price_book, from_ns=period.from_ns, to_ns=period.to_ns, provenance=provenance)
    return watch(bill(root, period, book, provenance=provenance, allow_unverified=allow_unverified), judged)


def watch(bill: Bill, judged: Period) -> Watch:
    """Judge each day of `judged` that has a charge by the charged days before it in the bill."""
    by_day = bill.frame.with_columns(pl.col("hour").dt.date().alias("day")).partition_by("day", as_dict=True)
    days = {day: rows for (day,), rows in sorted(by_day.items())}
    wanted = [day for day in days if judged.from_ns <= of_day(day).from_ns and of_day(day).to_ns <= judged.to_ns]
    enough = [day for day in wanted if sum(_counts(other, day) for other in days) >= DAYS_MIN]
    anomalies = []
    for metric in METRICS:
        known = [made for day, rows in days.items() if (made := _measure(metric, day, rows)) is not None]
        for now in known:
            before = [other for other in known if _counts(other.day, now.day)]
            if now.day in enough and len(before) >= DAYS_MIN:
                anomaly = _judge(metric, now, before, bill.stamp)
                anomalies += [anomaly] if anomaly is not None else []
    return Watch(
        stamp=bill.stamp,
        judged=tuple(enough),
        not_judged=tuple(day for day in wanted if day not in enough),
        anomalies=tuple(sorted(anomalies, key=lambda anomaly: anomaly.day)),
    )


def _counts(other: date, day: date) -> bool:
    """Whether a day is one of those that `day` is judged by."""
    return day - timedelta(days=DAYS_BEFORE) <= other < day


def _measure(metric: Metric, day: date, rows: pl.DataFrame) -> _Day | None:
    """None for a day on which there is nothing to divide by."""
    own = rows.filter(metric.rows)
    cost = int(own["cost_nano"].sum())
    if not metric.per_token:
        return _Day(day, Fraction(cost))
    useful = int(own.filter(pl.col("fate").is_in(_USEFUL))["tokens"].sum())
    return _Day(day, Fraction(cost * _MILLION, useful)) if useful else None


def _judge(metric: Metric, now: _Day, before: list[_Day], stamp: Stamp) -> Anomaly | None:
    middle = median_low(day.value for day in before)
    spread = median_low(abs(day.value - middle) for day in before)
    # The newest of several days with this value.
    was = next(day for day in reversed(before) if day.value == middle)
    scale = max(float(spread) * _SCALE, float(abs(middle)) * _SCALE_SHARE_MIN)
    away = float(abs(now.value - middle))
    if away <= THRESHOLD * scale:
        return None
    return Anomaly(
        day=now.day,
        metric=metric.name,
        value=_figure(metric, now, stamp),
        median=_figure(metric, was, stamp),
        compared_with=was.day,
        deviations=away / scale if scale else None,
    )


def _figure(metric: Metric, measured: _Day, stamp: Stamp) -> Figure:
    day = of_day(measured.day)
    stamp = dataclasses.replace(stamp, from_ns=day.from_ns, to_ns=day.to_ns)
    return Figure(value=round(measured.value), unit=metric.unit, view=AMORTIZED, stamp=stamp)


def roughly(nano_usd: int) -> str:
    """As `signed_usd`; what is next to nothing is `less than a cent`."""
    return "less than a cent" if 0 < abs(nano_usd) < _TINY_NANO else signed_usd(nano_usd)
