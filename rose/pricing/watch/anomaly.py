"""Days that cost other than the days before them, with what drove the change.

[D] A day is compared with the charged days, 7 at least, of the 28 days before it. It stands out where it lies more than
3.5 robust deviations from their median: a deviation is 1.4826 * MAD (the median distance from the median; the factor
makes it the standard deviation of a normal spread), and at least 1% of the median, so that days that are all alike flag
no trifle. The change is explained against the day of those that has the median itself (the lower of two), so that it is
the difference of two real days, and its effects sum to it exactly (`rose.pricing.watch.effects`).
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

from rose.pricing.charges.waste import WASTED
from rose.pricing.closing.bill import Bill, bill
from rose.pricing.closing.period import NS_PER_DAY, Period, of_day
from rose.pricing.figures import AMORTIZED, Figure, Stamp
from rose.pricing.money import rounded, signed_usd
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.watch.effects import BY, MIX, PRICE, USAGE, Change, cells, effects, largest

#: A day is judged by the charged days among those of this many days before it, if they are enough.
DAYS_BEFORE, DAYS_MIN = 28, 7
THRESHOLD = 3.5
_SCALE = 1.4826
_SCALE_SHARE_MIN = 0.01
_MILLION = 10**6
#: Effects closer to nothing than this, nano-dollars, are not written out.
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
TOKENS_EFFECT = "useful tokens"
_NAMED = {"team": "team", "device_class": "device class", "bucket": "bucket"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Anomaly:
    """A metric of a day that stands out from `median`, its value on the day `compared_with`.

    `change.effects` sum to the change, and so does each of its drill-downs. `deviations` is None where all days before
    were alike at 0, so that there is nothing to measure by.
    """

    day: date
    metric: str
    value: Figure
    median: Figure
    compared_with: date
    deviations: float | None
    change: Change
    driver: str

    def of_team(self, team: str) -> int:
        """What of the change is the team's, in the metric's unit."""
        return sum(self.change.by("team").get(team, {}).values())

    def to_json(self) -> dict[str, Any]:
        return {
            "day": str(self.day),
            "metric": self.metric,
            "value": self.value.to_json(),
            "median": self.median.to_json(),
            "compared_with": str(self.compared_with),
            "deviations": self.deviations,
            "change_nano": self.change.total,
            "effects_nano": self.change.effects,
            "by_nano": {name: self.change.by(name) for name in BY},
            "driver": self.driver,
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
    rows: pl.DataFrame
    useful: int


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
        return _Day(day, Fraction(cost), own, 0)
    useful = int(own.filter(pl.col("fate").is_in(_USEFUL))["tokens"].sum())
    return _Day(day, Fraction(cost * _MILLION, useful), own, useful) if useful else None


def _judge(metric: Metric, now: _Day, before: list[_Day], stamp: Stamp) -> Anomaly | None:
    middle = median_low(day.value for day in before)
    spread = median_low(abs(day.value - middle) for day in before)
    # The newest of several days with this value.
    was = next(day for day in reversed(before) if day.value == middle)
    scale = max(float(spread) * _SCALE, float(abs(middle)) * _SCALE_SHARE_MIN)
    away = float(abs(now.value - middle))
    if away <= THRESHOLD * scale:
        return None
    change = _change(metric, was, now)
    return Anomaly(
        day=now.day,
        metric=metric.name,
        value=_figure(metric, now, stamp),
        median=_figure(metric, was, stamp),
        compared_with=was.day,
        deviations=away / scale if scale else None,
        change=change,
        driver=_driver(change),
    )


def _change(metric: Metric, was: _Day, now: _Day) -> Change:
    """The difference of two days by effect and cell, in whole nano-dollars of the metric's unit.

    For a cost for each million tokens, with C the cost and U the useful tokens: the effects on C over the tokens of
    now, and C0 * (1 / U1 - 1 / U0) for the tokens themselves.
    """
    before, after = cells(was.rows), cells(now.rows)
    parts = effects(before, after)
    if metric.per_token:
        parts = {key: part * _MILLION / now.useful for key, part in parts.items()}
        by_tokens = Fraction(_MILLION, now.useful) - Fraction(_MILLION, was.useful)
        parts |= {(cell, TOKENS_EFFECT): amount.cost_nano * by_tokens for cell, amount in before.items()}
    total = round(now.value) - round(was.value)
    return Change(total, rounded(parts, total))


def _figure(metric: Metric, measured: _Day, stamp: Stamp) -> Figure:
    day = of_day(measured.day)
    stamp = dataclasses.replace(stamp, from_ns=day.from_ns, to_ns=day.to_ns)
    return Figure(value=round(measured.value), unit=metric.unit, view=AMORTIZED, stamp=stamp)


def _driver(change: Change) -> str:
    """In words: the largest effect, and where it was largest by each dimension."""
    sign = -1 if change.total < 0 else 1
    effect, amount = largest(change.effects.items(), sign)
    if effect == TOKENS_EFFECT:
        return f"mostly {'fewer' if sign > 0 else 'more'} useful tokens ({roughly(amount)} of {roughly(change.total)})"
    # Usage is spread over all cells alike; which of them grew shows in usage and mix together.
    counted = (effect,) if effect == PRICE else (USAGE, MIX)
    places = []
    for name in BY:
        rows = change.by(name)
        value, most = largest(((value, sum(row[part] for part in counted)) for value, row in rows.items()), sign)
        places.append(f"{_NAMED[name]} {value} ({roughly(most)})")
    return f"mostly {effect} ({roughly(amount)} of {roughly(change.total)}); most of it in {', '.join(places)}"


def roughly(nano_usd: int) -> str:
    """As `signed_usd`; what is next to nothing is `less than a cent`."""
    return "less than a cent" if 0 < abs(nano_usd) < _TINY_NANO else signed_usd(nano_usd)
