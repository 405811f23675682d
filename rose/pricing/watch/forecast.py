"""The forecast of a month's cost: the cost so far, plus the cost of the remaining days, drawn from a fitted model.

[D] Cost of a day = level + trend + weekday + error, in logarithms, or in dollars if a day cost nothing. The error of a
day is r times the error of the previous day, plus a new random part (the news). For each r in a list, the other
coefficients are fitted by generalised least squares. In the draws, each r has its restricted likelihood as weight
(Zellner, An Introduction to Bayesian Inference in Econometrics, 1971, ch. 4).

A day is called a departure in any of three cases. Its news exceeds `NEWS` robust deviations. Its Studentized residual
is more than chance explains. Or its logarithm is `FAR` robust deviations from the median of its weekday. After a level
shift or a holiday, only later days are used, and `DAYS_MIN` are needed. After a burst there is no forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction

import numpy as np

from rose.pricing.stats.bootstrap import Floats

DAYS_MIN = 28  #: Whole days, each weekday four times; with fewer, intervals of correlated days are too short.
CHARGED_MIN = 10  #: Days with charges: rare runs do not predict the next run.
DRAWS = 4000
NEWS, FAR = 4.0, 5.0
SHIFT, HOLIDAY, BURST = "level shift", "holiday", "burst"

_CARRIED = np.append(np.arange(-0.9, 0.95, 0.1), (0.95, 0.99))
_DIGITS = 9  #: Digits of a draw that are equal on any machine.
_SEED = 0
_LEAST_DEVIATION = 0.05  #: The least that a deviation is taken for, as a share of a day's cost.
_CHANCE = 0.01
_BACK_DAYS = 10  #: Days after which a cost that does not stay has come back.
_ASSUMES = "assuming no level shift, holiday or burst to come"


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """The forecast of a month's whole cost. With too little data, the amounts are None, and `method` says why."""

    method: str
    expected_nano: int | None = None
    low_nano: int | None = None
    high_nano: int | None = None
    over_share: float | None = None  #: Chance of going over the budget; None without one.


def forecast(
    history: Mapping[date, int], spent_nano: int, left: Sequence[tuple[date, Fraction]], budget_nano: int | None = None
) -> Forecast:
    """Return a month's forecast. `history` has no gaps. `left` has each remaining day, and how much of it remains."""
    if not left:
        return Forecast(
            method="the month is over",
            expected_nano=spent_nano,
            low_nano=spent_nano,
            high_nano=spent_nano,
            over_share=None if budget_nano is None else float(spent_nano > budget_nano),
        )
    if len(history) < DAYS_MIN:
        need = f"need {DAYS_MIN} whole UTC days since the first charge"
        return Forecast(method=f"not enough days: {need}, have {len(history)}")
    charged = sum(cost != 0 for cost in history.values())
    if charged < CHARGED_MIN:
        return Forecast(method=f"not enough days: {charged} of {len(history)} have charges; need {CHARGED_MIN}")
    model = _Model.of(history, left)
    if (departure := model.departure()) is not None:
        name, day = departure
        after = {later: cost for later, cost in history.items() if later > day - timedelta(days=name == SHIFT)}
        if name != BURST and len(after) >= DAYS_MIN:
            return forecast(after, spent_nano, left, budget_nano)
        more = f"earlier days do not predict later days; need {DAYS_MIN - len(after)} more days"
        return Forecast(method=f"{name} on {day}: {'the next may come at any time' if name == BURST else more}")
    drawn = np.sort(_rounded(np.maximum(model.draws(), 0)))
    low, expected, high = (spent_nano + int(drawn[at]) for at in (DRAWS // 40, DRAWS // 2, -1 - DRAWS // 40))
    return Forecast(
        method=f"level, trend, weekdays and autocorrelation of {len(history)} days in "
        f"{'logarithms' if model.logs else 'dollars'}, {DRAWS} draws, {_ASSUMES}",
        expected_nano=expected,
        low_nano=low,
        high_nano=high,
        over_share=None if budget_nano is None else float((drawn > budget_nano - spent_nano).mean()),
    )


@dataclass(frozen=True, slots=True)
class _Fit:
    """The fit for one r (`carried`). `root` is the Cholesky factor of the coefficients' covariance / error variance.
    `squares` is the sum of squared residuals."""

    carried: float
    coefficients: Floats
    root: Floats
    squares: float
    freedom: int
    log_likelihood: float


@dataclass(frozen=True, slots=True)
class _Model:
    """The model of past and future days. `y` has logarithms of nano-dollars if `logs`, else nano-dollars / `unit`."""

    first: date
    logs: bool
    unit: float
    y: Floats
    x: Floats  #: Level, trend, and six contrasts of weekdays by day from the first known day, shape (days, 8).
    share: Floats  #: Remaining share of each day to come.
    fits: Sequence[_Fit]

    @classmethod
    def of(cls, history: Mapping[date, int], left: Sequence[tuple[date, Fraction]]) -> _Model:
        first, days = min(history), len(history)
        costs = np.array([history[day] for day in sorted(history)], np.float64)
        logs = bool(costs.min() > 0)
        unit = 1.0 if logs else float(np.abs(costs).mean())
        y = np.log(costs) if logs else costs / unit
        share = np.zeros((max(day for day, _ in left) - first).days + 1 - days)
        for day, part in left:
            share[(day - first).days - days] = float(part)
        number = np.arange(days + len(share))
        weekday = np.array([(first + timedelta(days=int(n))).weekday() for n in number])
        contrasts = [(weekday == day) * 1.0 - (weekday == 6) for day in range(6)]
        x = np.column_stack([np.ones(len(number)), (number - days / 2) / days, *contrasts])
        return cls(first, logs, unit, y, x, share, list(_fits(y, x[:days])))

    def departure(self) -> tuple[str, date] | None:
        """Return the most unusual day's kind (SHIFT, HOLIDAY, BURST) and date, or None if no day is unusual."""
        fit, known = max(self.fits, key=lambda one: one.log_likelihood), self.x[: len(self.y)]
        error = self.y - known @ fit.coefficients
        level = self.y - known[:, 2:] @ fit.coefficients[2:]  # Without what weekdays do.
        departs = np.abs(_beyond(self.y - _weekday_medians(self.y))) / FAR if self.logs else np.zeros(len(level))
        news = np.abs(_beyond(error[1:] - fit.carried * error[:-1])) / NEWS
        departs[1:] = np.max([departs[1:], news, _unexplained(self.y, known, fit.carried)], axis=0)
        if departs.max() <= 1:
            return None
        at = int(np.argmax(departs))
        before, later = float(np.median(level[max(0, at - 7) : at] if at else level[1:8])), level[at + _BACK_DAYS :]
        stays = at > 0 and len(later) > 3 and abs(float(np.median(later)) - before) > abs(level[at] - before) / 2
        name = SHIFT if stays else HOLIDAY if level[at] < before else BURST
        return name, self.first + timedelta(days=at)

    def draws(self) -> Floats:
        days = len(self.y)
        random = np.random.default_rng(_SEED)
        weight = np.array([fit.log_likelihood for fit in self.fits])
        weight = np.exp(weight - weight.max())
        drawn = []
        for fit, times in zip(self.fits, random.multinomial(DRAWS, weight / weight.sum()), strict=True):
            sigma = np.sqrt(fit.squares / random.chisquare(fit.freedom, times))
            normal = random.standard_normal((times, self.x.shape[1]))
            coefficients = fit.coefficients + sigma[:, None] * (normal @ fit.root.T)
            error = self.y[-1] - coefficients @ self.x[days - 1]
            total = np.zeros(times)
            for row, weight_of_day in zip(self.x[days:], self.share, strict=True):
                error = fit.carried * error + sigma * random.standard_normal(times)
                value = coefficients @ row + error
                # Weakly correlated days can have a trend with absurd costs: bound them.
                total += weight_of_day * (np.exp(np.minimum(value, 60.0)) if self.logs else value * self.unit)
            drawn.append(total)
        return np.concatenate(drawn)


def _rounded(amounts: Floats) -> Floats:
    digit = 10 ** (np.floor(np.log10(np.maximum(amounts, 1))) + 1 - _DIGITS)
    return np.asarray(np.rint(np.rint(amounts / digit) * digit), dtype=np.float64)


def _beyond(values: Floats) -> Floats:
    """Return each value's distance from the median, in robust standard deviations."""
    away = values - np.median(values)
    return np.asarray(away / max(1.4826 * float(np.median(np.abs(away))), _LEAST_DEVIATION), dtype=np.float64)


def _weekday_medians(y: Floats) -> Floats:
    """Return, for each day, the median of the other days of the same weekday."""
    weeks = (np.subtract.outer(np.arange(len(y)), np.arange(len(y))) % 7 == 0) & ~np.eye(len(y), dtype=bool)
    return np.array([np.median(y[others]) for others in weeks])


def _unexplained(y: Floats, x: Floats, carried: float) -> Floats:
    """Return externally Studentized residuals, divided by the largest residual that chance explains (Bonferroni)."""
    from scipy.special import stdtrit

    y, x = y[1:] - carried * y[:-1], x[1:] - carried * x[:-1]
    basis = np.linalg.qr(x)[0]
    error, kept = y - basis @ (basis.T @ y), 1 - np.square(basis).sum(axis=1)
    freedom = len(y) - x.shape[1] - 1
    deviation = np.sqrt(np.maximum((error @ error - error**2 / kept) / freedom, _LEAST_DEVIATION**2) * kept)
    return np.asarray(np.abs(error) / deviation / stdtrit(freedom, 1 - _CHANCE / 2 / len(y)), dtype=np.float64)


def _fits(y: Floats, x: Floats) -> Iterator[_Fit]:
    """Yield the generalised least squares fit for each r. Prais and Winsten's transform makes errors independent."""
    for carried in _CARRIED:
        first = np.sqrt(1 - carried**2)
        white_y, white_x = (
            np.concatenate([first * values[:1], values[1:] - carried * values[:-1]]) for values in (y, x)
        )
        basis, upper = np.linalg.qr(white_x)
        coefficients = np.linalg.solve(upper, basis.T @ white_y)
        inverse = np.linalg.inv(upper)
        # Equal days leave only rounding errors.
        squares, freedom = max(float(np.square(white_y - white_x @ coefficients).sum()), 1e-24), len(y) - x.shape[1]
        determinant = -2 * np.log(np.abs(np.diag(upper))).sum()
        yield _Fit(
            carried=float(carried),
            coefficients=coefficients,
            root=np.linalg.cholesky(inverse @ inverse.T),
            squares=squares,
            freedom=freedom,
            log_likelihood=float(np.log(first) + (determinant - freedom * np.log(squares)) / 2),
        )
