"""Forecast cost of a whole month: the amount spent, and the remaining days drawn from a fitted model.

[D] Cost of a day = level + trend + weekday + error, and each error keeps a share r of the one before (a first-order
autoregression), in logarithms, or in dollars where some day cost less than a twentieth of the middle one. For each r
between -0.9 and 0.99 the rest is fitted by generalised least squares (statsmodels' GLS); r is weighted by its
restricted likelihood, with a uniform prior, and the other parameters are drawn from what the fit leaves open (the usual
flat prior). Source: Zellner, An Introduction to Bayesian Inference in Econometrics, 1971, ch. 4.

The forecast is the middle of the draws, the interval their middle 95%, the chance of going over the share above the
budget. The current day counts by the hours left of it. A planned run that has not begun is not in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from typing import Any

import numpy as np

from rose.pricing.stats.bootstrap import Floats

DAYS_MIN = 28  #: Whole days, each weekday four times; with fewer, intervals of correlated days are too short.
CHARGED_MIN = 10  #: Days among them that cost something: a few rare runs say too little of the next one.
DRAWS = 4000

_LEAST_SHARE = 1 / 20  #: Below this share of the middle day, a day is too different for logarithms.
_CARRIED = np.append(np.arange(-0.9, 0.95, 0.1), (0.95, 0.99))
_DIGITS = 9  #: Digits of a draw that are the same on any machine.
_SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Nano-dollars at the end of the month; all None where there was not enough data, and `method` says why."""

    method: str
    expected_nano: int | None = None
    low_nano: int | None = None
    high_nano: int | None = None
    over_share: float | None = None  #: Chance of going over the budget; None without one.


def forecast(
    history: Mapping[date, int], spent_nano: int, left: Sequence[tuple[date, Fraction]], budget_nano: int | None = None
) -> Forecast:
    """Forecast the month from whole days. `history` is the cost of each past day, nano-dollars, without a gap, 0
    without a charge; `left` is each later day of the month, with the share of it that is left."""
    if not left:
        return Forecast(
            method="the month is over",
            expected_nano=spent_nano,
            low_nano=spent_nano,
            high_nano=spent_nano,
            over_share=None if budget_nano is None else float(spent_nano > budget_nano),
        )
    if len(history) < DAYS_MIN:
        known = f"{len(history)} {'is' if len(history) == 1 else 'are'} known"
        return Forecast(method=f"not enough days: it takes {DAYS_MIN} whole ones (UTC), and {known}")
    charged = sum(cost != 0 for cost in history.values())
    if charged < CHARGED_MIN:
        return Forecast(
            method=f"not enough days: {charged} of {len(history)} cost anything, and it takes {CHARGED_MIN}"
        )
    drawn, scale = _draws(history, left)
    totals = sorted(spent_nano + max(0, round(float(f"{value:.{_DIGITS}g}"))) for value in drawn)
    edge = DRAWS // 40
    return Forecast(
        method=f"level, trend, weekdays and autocorrelation of {len(history)} days in {scale}, {DRAWS} draws",
        expected_nano=totals[DRAWS // 2],
        low_nano=totals[edge],
        high_nano=totals[-1 - edge],
        over_share=None if budget_nano is None else sum(total > budget_nano for total in totals) / DRAWS,
    )


def _draws(history: Mapping[date, int], left: Sequence[tuple[date, Fraction]]) -> tuple[Floats, str]:
    """Return nano-dollars of the remaining days, drawn again and again, and what the model is in."""
    first, days = min(history), len(history)
    costs = np.array([history[day] for day in sorted(history)], np.float64)
    logs = bool(costs.min() > np.median(costs) * _LEAST_SHARE)
    unit = 1.0 if logs else float(np.abs(costs).mean())
    y = np.log(costs) if logs else costs / unit
    share = np.zeros((max(day for day, _ in left) - first).days + 1 - days)
    for day, part in left:
        share[(day - first).days - days] = float(part)
    # Level, trend, and six contrasts of weekdays for each day from the first known one on, shape (days, 8).
    number = np.arange(days + len(share))
    weekday = np.array([(first + timedelta(days=int(n))).weekday() for n in number])
    contrasts = [(weekday == day) * 1.0 - (weekday == 6) for day in range(6)]
    x = np.column_stack([np.ones(len(number)), (number - days / 2) / days, *contrasts])
    random = np.random.default_rng(_SEED)
    fits = list(_fits(y, x[:days]))
    weight = np.array([fit.log_likelihood for fit in fits])
    weight = np.exp(weight - weight.max())
    drawn = []
    for fit, times in zip(fits, random.multinomial(DRAWS, weight / weight.sum()), strict=True):
        sigma = np.sqrt(fit.squares / random.chisquare(fit.freedom, times))
        coefficients = fit.coefficients + sigma[:, None] * (random.standard_normal((times, x.shape[1])) @ fit.root.T)
        error = y[-1] - coefficients @ x[days - 1]
        total = np.zeros(times)
        for row, weight_of_day in zip(x[days:], share, strict=True):
            error = fit.carried * error + sigma * random.standard_normal(times)
            value = coefficients @ row + error
            # Weakly correlated days can have a trend with absurd costs: bound them.
            total += weight_of_day * (np.exp(np.minimum(value, 60.0)) if logs else value * unit)
        drawn.append(total)
    return np.concatenate(drawn), "logarithms" if logs else "dollars"


@dataclass(frozen=True, slots=True)
class _Fit:
    """The fit for one r: coefficients, a root of their covariance over the error's variance, and squares left."""

    carried: float
    coefficients: Floats
    root: Floats
    squares: float
    freedom: int
    log_likelihood: float


def _fits(y: Floats, x: Floats) -> Iterator[_Fit]:
    from statsmodels.regression.linear_model import GLS  # Takes a second to load, and is rarely needed.

    number = np.arange(len(y))
    apart = np.abs(number[:, None] - number)
    for carried in _CARRIED:
        fit: Any = GLS(y, x, sigma=carried**apart / (1 - carried**2)).fit()
        covariance = np.asarray(fit.normalized_cov_params, dtype=np.float64)
        # Equal days leave only rounding errors.
        squares, freedom = max(float(fit.ssr), 1e-24), int(fit.df_resid)
        # Its first term is of the covariance of the errors themselves.
        likelihood = (np.log(1 - carried**2) + np.linalg.slogdet(covariance)[1] - freedom * np.log(squares)) / 2
        yield _Fit(
            carried=float(carried),
            coefficients=np.asarray(fit.params, dtype=np.float64),
            root=np.asarray(np.linalg.cholesky(covariance), dtype=np.float64),
            squares=squares,
            freedom=freedom,
            log_likelihood=float(likelihood),
        )
