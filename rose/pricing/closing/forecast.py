"""What a month will have cost when it is over: what is spent, and the days that are left drawn from the days before.

[D] Each day that is left costs what some earlier day did, drawn at random: one of the same weekday where at least 14
days are known (so that each weekday was seen twice), else any. The current day counts by the hours that are left of
it. The forecast is the mean over the draws, the interval their middle 95%, the chance of going over the share of draws
above the budget. Days are taken as independent of one another, and the fleet as it was: a run that is planned and has
not begun is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction

import numpy as np

DAYS_MIN = 3
WEEKDAY_DAYS_MIN = 14
RESAMPLES = 4000
_SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Nano-dollars at the end of the month; all None where there was not enough data, and `method` says why."""

    method: str
    expected_nano: int | None = None
    low_nano: int | None = None
    high_nano: int | None = None
    over_share: float | None = None


def forecast(
    history: Mapping[date, int], spent_nano: int, left: Sequence[tuple[date, Fraction]], budget_nano: int
) -> Forecast:
    """Forecast from whole days.

    `history` is the cost of each day that is over, nano-dollars, days without a charge as 0; `left` is each day of the
    month that is not over, with the share of it that is left.
    """
    if not left:
        return Forecast(
            method="the month is over",
            expected_nano=spent_nano,
            low_nano=spent_nano,
            high_nano=spent_nano,
            over_share=float(spent_nano > budget_nano),
        )
    if len(history) < DAYS_MIN:
        return Forecast(method=f"not enough data: {len(history)} whole days are known, and it takes {DAYS_MIN}")
    by_weekday = len(history) >= WEEKDAY_DAYS_MIN
    days = sorted(history)
    random = np.random.default_rng(_SEED)
    drawn = np.full(RESAMPLES, spent_nano, np.int64)
    for day, share in left:
        pool = [history[each] for each in days if not by_weekday or each.weekday() == day.weekday()]
        # Rounded before they are drawn: whole nano-dollars, so that the sums are the same on any machine.
        costs = np.array([round(cost * share) for cost in pool], np.int64)
        drawn += costs[random.integers(0, len(costs), RESAMPLES)]
    drawn.sort()
    edge = RESAMPLES // 40
    of = "days of the same weekday" if by_weekday else "earlier days"
    return Forecast(
        method=f"bootstrap of the days left from {len(history)} days ({of}), {RESAMPLES} draws",
        expected_nano=int(sum(map(int, drawn)) // RESAMPLES),
        low_nano=int(drawn[edge]),
        high_nano=int(drawn[-1 - edge]),
        over_share=float(np.count_nonzero(drawn > budget_nano) / RESAMPLES),
    )
