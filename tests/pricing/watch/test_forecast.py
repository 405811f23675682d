from datetime import date, timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.watch.forecast import BURST, DAYS_MIN, HOLIDAY, SHIFT, forecast

MONDAY = date(2026, 6, 1)
DAYS = [MONDAY + timedelta(days=n) for n in range(100)]
WHOLE = Fraction(1)
USD = 10**9


def rest(known: int, days: int = 10) -> list[tuple[date, Fraction]]:
    return [(day, WHOLE) for day in DAYS[known : known + days]]


def test_alike_days_are_forecast_without_a_doubt() -> None:
    history = dict.fromkeys(DAYS[:30], 5 * USD)
    estimate = forecast(history, 50 * USD, rest(30, 20), 149 * USD)
    assert (estimate.expected_nano, estimate.low_nano, estimate.high_nano) == (150 * USD,) * 3
    assert estimate.over_share == 1.0
    assert estimate.method.startswith("level, trend, weekdays and autocorrelation of 30 days in logarithms, 4000 draws")
    assert estimate.method.endswith("assuming no level shift, holiday or burst to come")
    assert forecast(history, 50 * USD, rest(30, 20), 150 * USD).over_share == 0.0
    assert forecast(history, 50 * USD, rest(30, 20)).over_share is None
    # A third of a day costs a third of one.
    assert forecast(history, 0, [(DAYS[30], Fraction(1, 3))], 0).expected_nano == pytest.approx(5 * USD / 3)


def test_weekdays_are_told_apart_and_a_free_day_has_no_logarithm() -> None:
    estimate = forecast({day: (7 if day.weekday() < 5 else 0) * USD for day in DAYS[:28]}, 0, rest(28, 7), 34 * USD)
    assert (estimate.low_nano, estimate.expected_nano, estimate.high_nano) == (35 * USD,) * 3
    assert "in dollars" in estimate.method


def test_growth_goes_on() -> None:
    estimate = forecast({day: round(100 * USD * 1.02**n) for n, day in enumerate(DAYS[:56])}, 0, rest(56))
    assert estimate.expected_nano == pytest.approx(sum(100 * USD * 1.02**n for n in range(56, 66)), rel=1e-4)


@pytest.mark.parametrize(
    ("costs", "why"),
    [
        ([USD] * 27, "not enough days: need 28 whole UTC days since the first charge, have 27"),
        ([0] * 31 + [USD] * 9, "not enough days: 9 of 40 have charges; need 10"),
    ],
)
def test_too_few_days_say_nothing(costs: list[int], why: str) -> None:
    estimate = forecast(dict(zip(DAYS, costs, strict=False)), USD, rest(len(costs)), 5 * USD)
    assert estimate.expected_nano is estimate.low_nano is estimate.high_nano is estimate.over_share is None
    assert estimate.method == why


def changed(days: int, by: float, first: int, last: int) -> dict[date, int]:
    """Costs that wander a little, from one day to another a multiple of what they were."""
    wander = [100 + 9 * ((n * n) % 7 - 3) for n in range(days)]
    return {DAYS[n]: round(wander[n] * (by if first <= n <= last else 1) * USD) for n in range(days)}


@pytest.mark.parametrize(
    ("by", "first", "last", "name"),
    [(3, 20, 60, SHIFT), (0.3, 20, 60, SHIFT), (0.1, 20, 26, HOLIDAY), (0, 20, 20, HOLIDAY), (8, 20, 20, BURST)],
)
def test_a_day_that_no_known_day_tells_is_named_and_leaves_no_forecast(
    by: float, first: int, last: int, name: str
) -> None:
    estimate = forecast(changed(40, by, first, last), USD, rest(40), 5 * USD)
    assert estimate.expected_nano is estimate.low_nano is estimate.high_nano is estimate.over_share is None
    assert estimate.method.startswith(f"{name} on {DAYS[20]}: ")
    assert forecast(changed(40, 1, first, last), USD, rest(40), 5 * USD).low_nano is not None
    # Days since then are enough, but a burst may come again.
    later = forecast(changed(60, by, first, last), USD, rest(60), 5 * USD)
    assert (later.low_nano is None) == (name == BURST)
    if name == SHIFT:
        assert later.expected_nano == pytest.approx(1000 * by * USD, rel=0.1)


def test_weekends_that_cost_little_are_no_departure_and_a_holiday_beside_them_is_one() -> None:
    usual = {day: cost if day.weekday() < 5 else cost // 20 for day, cost in changed(40, 1, 0, 0).items()}
    estimate = forecast(usual, 0, rest(40, 7))
    assert estimate.expected_nano == pytest.approx(5 * 100 * USD + 2 * 5 * USD, rel=0.2)
    holiday = {day: cost // 10 if DAYS[15] <= day <= DAYS[21] else cost for day, cost in usual.items()}
    assert forecast(holiday, 0, rest(40, 7)).method.startswith(f"{HOLIDAY} on ")


def test_a_first_day_that_differs_is_left_out() -> None:
    estimate = forecast(changed(40, 0.1, 0, 0), 0, rest(40))
    assert estimate.method.startswith("level, trend, weekdays and autocorrelation of 39 days")


def test_a_month_that_is_over_is_what_was_spent() -> None:
    assert forecast({}, 7, [], 7).over_share == 0.0
    estimate = forecast({}, 8, [], 7)
    assert (estimate.expected_nano, estimate.over_share, estimate.method) == (8, 1.0, "the month is over")


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.integers(0, 10**15), min_size=DAYS_MIN, max_size=56),
    st.integers(0, 10**16),
    st.integers(1, 30),
    st.integers(0, 10**17),
)
def test_a_forecast_lies_where_it_can(costs: list[int], spent: int, left: int, budget: int) -> None:
    history = dict(zip(DAYS, costs, strict=False))
    estimate = forecast(history, spent, rest(len(costs), left), budget)
    assert estimate == forecast(history, spent, rest(len(costs), left), budget)
    if sum(cost > 0 for cost in costs) < 10 or estimate.method.startswith((SHIFT, HOLIDAY, BURST)):
        assert estimate.expected_nano is estimate.low_nano is estimate.high_nano is estimate.over_share is None
        return
    amounts = [
        spent,
        *(amount for amount in (estimate.low_nano, estimate.expected_nano, estimate.high_nano) if amount is not None),
    ]
    assert amounts == sorted(amounts)
    assert (len(amounts), estimate.over_share is None) == (4, False)
    assert int(spent > budget) <= (estimate.over_share or 0) <= 1
