from __future__ import annotations

from datetime import date, timedelta
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.closing.forecast import forecast

MONDAY = date(2026, 6, 1)
DAYS = [MONDAY + timedelta(days=n) for n in range(60)]
WHOLE = Fraction(1)
USD = 10**9


def test_alike_days_are_forecast_without_a_doubt() -> None:
    history = dict.fromkeys(DAYS[:10], 5 * USD)
    made = forecast(history, 50 * USD, [(day, WHOLE) for day in DAYS[10:30]], 149 * USD)
    assert (made.expected_nano, made.low_nano, made.high_nano) == (150 * USD,) * 3
    assert made.over_share == 1.0
    assert made.method == "bootstrap of the days left from 10 days (earlier days), 4000 draws"
    assert forecast(history, 50 * USD, [(day, WHOLE) for day in DAYS[10:30]], 150 * USD).over_share == 0.0
    # A third of a day costs a third of one.
    assert forecast(history, 0, [(DAYS[10], Fraction(1, 3))], 0).expected_nano == round(5 * USD / 3)


def test_from_fourteen_days_on_weekdays_are_told_apart() -> None:
    history = {day: (7 if day.weekday() < 5 else 0) * USD for day in DAYS[:14]}
    left = [(day, WHOLE) for day in DAYS[14:21]]
    made = forecast(history, 0, left, 34 * USD)
    assert (made.low_nano, made.expected_nano, made.high_nano) == (35 * USD,) * 3
    assert "same weekday" in made.method
    fewer = forecast(dict(list(history.items())[:13]), 0, left, 34 * USD)
    assert "earlier days" in fewer.method
    assert fewer.low_nano is not None
    assert fewer.high_nano is not None
    assert fewer.low_nano < 35 * USD <= fewer.high_nano


def test_too_few_days_say_nothing() -> None:
    made = forecast(dict.fromkeys(DAYS[:2], USD), USD, [(DAYS[2], WHOLE)], 5 * USD)
    assert made.expected_nano is made.low_nano is made.high_nano is made.over_share is None
    assert made.method == "not enough data: 2 whole days are known, and it takes 3"


def test_a_month_that_is_over_is_what_was_spent() -> None:
    assert forecast({}, 7, [], 7).over_share == 0.0
    made = forecast({}, 8, [], 7)
    assert (made.expected_nano, made.over_share, made.method) == (8, 1.0, "the month is over")


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 10**15), min_size=3, max_size=20),
    st.integers(0, 10**16),
    st.integers(1, 30),
    st.integers(0, 10**17),
)
def test_a_forecast_lies_where_it_can(costs: list[int], spent: int, left: int, budget: int) -> None:
    history = dict(zip(DAYS, costs, strict=False))
    days = [(day, WHOLE) for day in DAYS[len(costs) : len(costs) + left]]
    made = forecast(history, spent, days, budget)
    assert made == forecast(history, spent, days, budget)
    assert made.low_nano is not None
    assert made.expected_nano is not None
    assert made.high_nano is not None
    assert made.over_share is not None
    assert spent + left * min(costs) <= made.low_nano <= made.high_nano <= spent + left * max(costs)
    assert spent + left * min(costs) <= made.expected_nano <= spent + left * max(costs)
    assert 0 <= made.over_share <= 1
    if spent > budget:
        assert made.over_share == 1
