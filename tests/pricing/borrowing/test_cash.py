from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.borrowing.cash import Bought
from rose.pricing.money import NS_PER_HOUR, NS_PER_S

#: 37 s of a dedicated device were needed, which sat idle for 76 s.
LIVE = Bought(needed_ns=Fraction(37 * NS_PER_S), idle_ns=76 * NS_PER_S, usd_per_device_hour=Fraction(2))


def test_what_an_idle_device_would_have_made_for_nothing_is_on_no_bill() -> None:
    assert (LIVE.beyond_ns, LIVE.units, LIVE.usd) == (0, 0, 0)


def test_what_exceeds_idle_time_buys_whole_devices_for_an_hour() -> None:
    beyond = replace(LIVE, idle_ns=36 * NS_PER_S)
    assert (beyond.beyond_ns, beyond.units, beyond.usd) == (NS_PER_S, 1, 2)
    assert replace(LIVE, idle_ns=0, needed_ns=Fraction(NS_PER_HOUR)).usd == 2
    assert replace(LIVE, idle_ns=0, needed_ns=Fraction(NS_PER_HOUR + 1)).usd == 4


@pytest.mark.parametrize(("hours", "units", "usd"), [("0.01", 2, "0.04"), ("1", 1, "2"), ("8760", 1, "17520")])
def test_the_book_says_the_least_that_can_be_bought(hours: str, units: int, usd: str) -> None:
    bought = replace(LIVE, idle_ns=0, needed_ns=Fraction(60 * NS_PER_S), increment_hours=Decimal(hours))
    assert (bought.units, bought.usd) == (units, Fraction(usd))


times = st.integers(0, 1000 * NS_PER_HOUR)


@given(times, times, st.sampled_from(["0.25", "1", "24"]))
def test_purchases_cover_what_is_needed_and_none_is_one_too_many(needed_ns: int, idle_ns: int, hours: str) -> None:
    bought = Bought(
        needed_ns=Fraction(needed_ns), idle_ns=idle_ns, usd_per_device_hour=Fraction(2),
        increment_hours=Decimal(hours),
    )  # fmt: skip
    assert bought.units * bought.increment_ns >= bought.beyond_ns
    assert bought.units == 0 or (bought.units - 1) * bought.increment_ns < bought.beyond_ns
    assert replace(bought, idle_ns=idle_ns + NS_PER_S).usd <= bought.usd


def test_draws_buy_whole_devices_too() -> None:
    bought = replace(LIVE, idle_ns=0, needed_ns=Fraction(NS_PER_HOUR))
    assert list(bought.draws(np.array([0.0, 0.5, 1.0, 1.3]))) == [0, 2, 2, 4]
