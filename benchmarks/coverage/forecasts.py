"""Simulated histories of daily cost, and forecasts of the days that come after them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from fractions import Fraction

import numpy as np

from benchmarks.coverage.shown import Shown, wandering
from rose.pricing.stats.bootstrap import Floats
from rose.pricing.watch.forecast import DAYS_MIN, forecast

FIRST = date(2026, 3, 2)
USD = 10**9


def independent(random: np.random.Generator, days: int) -> Floats:
    """Each day by itself, a fifth around 100."""
    return 100 + 20 * random.standard_normal(days)


def carried(random: np.random.Generator, days: int) -> Floats:
    """0.7 of what a day was off carries over to the next: AR(0.7)."""
    return 100 + 15 * wandering(random, days, 0.7)


def weekdays_carried(random: np.random.Generator, days: int) -> Floats:
    """Weekends cost 40% of a working day, and 0.7 of what a day was off carries over."""
    return np.asarray(
        np.where(np.arange(days) % 7 >= 5, 40, 100) * np.exp(0.2 * wandering(random, days, 0.7)), np.float64
    )


def growing(random: np.random.Generator, days: int) -> Floats:
    """2% more each day."""
    return np.asarray(100 * 1.02 ** np.arange(days) * np.exp(0.15 * random.standard_normal(days)), np.float64)


def some_days(random: np.random.Generator, days: int) -> Floats:
    """A run on four days in ten."""
    return np.where(random.random(days) < 0.4, 100 * np.exp(0.5 * random.standard_normal(days)), 0)


PROCESSES = {
    "independent days": independent,
    "AR(0.7)": carried,
    "weekdays, AR(0.7)": weekdays_carried,
    "2% growth a day": growing,
    "runs on some days": some_days,
}
KNOWN_DAYS = (3, 13, 14, 28, 56)


def forecasts(random: np.random.Generator) -> Iterator[Shown]:
    """Every process with 28 and 56 known days, and independent ones with fewer; the month has 2 to 28 days left."""
    for name, process in PROCESSES.items():
        for known in KNOWN_DAYS if name == "independent days" else (28, 56):
            left = int(random.integers(2, 29))
            costs = np.rint(np.maximum(process(random, known + left), 0) * USD).astype(np.int64)
            days = [FIRST + timedelta(days=n) for n in range(known + left)]
            history = {day: int(cost) for day, cost in zip(days[:known], costs, strict=False)}
            made = forecast(history, 0, [(day, Fraction(1)) for day in days[known:]])
            label = f"forecast, {name}, {known} known"
            if made.low_nano is None:
                yield Shown(label, 0.0, None, None, made.method, never=known < DAYS_MIN)
            else:
                true = float(costs[known:].sum())
                yield Shown(label, true, made.low_nano, made.high_nano, never=known < DAYS_MIN)
