"""Simulated histories of daily cost, and forecasts of later days."""

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


#: Changes of the costs of some days, of which the first `past` are known.
CHANGES: dict[str, Callable[[np.random.Generator, Floats, int], Floats]] = {
    "level shift": lambda random, costs, past: (
        costs * np.where(np.arange(len(costs)) >= random.integers(7, past - 1), random.choice([1 / 3, 3.0]), 1.0)
    ),
    "holiday": lambda random, costs, past: (
        costs * np.where(abs(np.arange(len(costs)) - random.integers(3, past - 7) - 3) <= 3, 0.1, 1.0)
    ),
    "bursts": lambda random, costs, _: costs * np.where(random.random(len(costs)) < 0.08, 6.0, 1.0),
}


def forecasts(random: np.random.Generator) -> Iterator[Shown]:
    """Forecast 2 to 28 days of each process from 28 and 56 known days."""
    for past in (DAYS_MIN, 2 * DAYS_MIN):
        days = past + int(random.integers(2, 29))
        for name, process in PROCESSES.items():
            yield _forecast(f"forecast, {name}, {past} known", process(random, days), past)
        for name, change in CHANGES.items():
            plain = PROCESSES["independent days" if name == "bursts" else "weekdays, AR(0.7)"](random, days)
            costs = change(random, plain, past)
            # Bursts that no known day shows cannot be forecast: the forecast says that it assumes none.
            unseen = name == "bursts" and not np.any(costs[:past] > 3 * plain[:past])
            yield _forecast(f"forecast, {name}{' to come' if unseen else ''}, {past} known", costs, past)


def _forecast(label: str, costs: Floats, past: int) -> Shown:
    nano = np.rint(np.maximum(costs, 0) * USD).astype(np.int64)
    days = [FIRST + timedelta(days=n) for n in range(len(costs))]
    history = {day: int(cost) for day, cost in zip(days[:past], nano, strict=False)}
    prediction = forecast(history, 0, [(day, Fraction(1)) for day in days[past:]])
    why = prediction.method.partition(" on ")[0] if prediction.low_nano is None else None
    return Shown(label, float(nano[past:].sum()), prediction.low_nano, prediction.high_nano, why)
