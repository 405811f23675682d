"""Simulated histories of daily cost, and forecasts of the days that come after them."""

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from fractions import Fraction

import numpy as np

from benchmarks.coverage.shown import Shown, wandering
from rose.pricing.stats.bootstrap import Floats
from rose.pricing.watch.forecast import DAYS_MIN, forecast

FIRST = date(2026, 3, 2)
USD = 10**9


#: Daily costs around 100 of some days; in AR(0.7) a day carries 0.7 of its deviation over to the next.
PROCESSES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "independent days": lambda random, days: 100 + 20 * random.standard_normal(days),
    "AR(0.7)": lambda random, days: 100 + 15 * wandering(random, days, 0.7),
    "weekdays, AR(0.7)": lambda random, days: (
        np.where(np.arange(days) % 7 >= 5, 40.0, 100.0) * np.exp(0.2 * wandering(random, days, 0.7))
    ),
    "2% growth a day": lambda random, days: 100 * 1.02 ** np.arange(days) * np.exp(0.15 * random.standard_normal(days)),
    "runs on some days": lambda random, days: np.where(
        random.random(days) < 0.4, 100 * np.exp(0.5 * random.standard_normal(days)), 0
    ),
}
KNOWN_DAYS = (3, 13, 14, 28, 56)


def forecasts(random: np.random.Generator) -> Iterator[Shown]:
    """Forecast 2 to 28 days of each process from 28 and 56 known days, and of independent days from fewer."""
    for name, process in PROCESSES.items():
        for known in KNOWN_DAYS if name == "independent days" else (28, 56):
            left = int(random.integers(2, 29))
            costs = np.rint(np.maximum(process(random, known + left), 0) * USD).astype(np.int64)
            days = [FIRST + timedelta(days=n) for n in range(known + left)]
            history = {day: int(cost) for day, cost in zip(days[:known], costs, strict=False)}
            made = forecast(history, 0, [(day, Fraction(1)) for day in days[known:]])
            label = f"forecast, {name}, {known} known"
            truth, why = float(costs[known:].sum()), made.method if made.low_nano is None else None
            yield Shown(label, truth, made.low_nano, made.high_nano, why, never=known < DAYS_MIN)
