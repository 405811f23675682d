from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coverage import groups, lending
from rose.pricing.borrowing import savings
from rose.pricing.borrowing.savings import DEDICATED, NOTHING, Alternative, Bought, Saving
from rose.pricing.marginal_cost.terms import Term
from rose.pricing.money import NS_PER_HOUR, NS_PER_S
from rose.pricing.run.cost_per_correct import Groups
from rose.pricing.run.tokens import UNKNOWN, Spread
from rose.pricing.stats import bootstrap
from tests.pricing.answers import conftest as answers

STEADY = {"borrowed": Spread(0.05, 9), "dedicated": Spread(0.05, 9)}


def bought(needed_ns: Fraction | int, idle_ns: int, usd_per_device_hour: int, hours: str | None = None) -> Bought:
    """What would have been bought of an hour."""
    of_hour, price = {0: (Fraction(needed_ns), Fraction(idle_ns))}, Fraction(usd_per_device_hour)
    return Bought(hours=of_hour, usd_per_device_hour=price, increment_hours=None if hours is None else Decimal(hours))


#: Five device-hours at $1 an hour in steps of three seconds, with none idle.
BOUGHT = bought(5 * NS_PER_HOUR, 0, 1, "0.001")
NOT_LENT = Term(usd=Fraction(0), basis="price book", explained="")
#: 37 s of a dedicated device were needed, which sat idle for 76 s.
LIVE = bought(37 * NS_PER_S, 76 * NS_PER_S, 2)
times = st.integers(0, 1000 * NS_PER_HOUR)


@pytest.fixture(scope="module")
def sample_groups() -> Groups:
    return groups.simulate(np.random.default_rng(1)).groups


def energy(width: float = 0.0, **more: Any) -> Term:
    interval = bootstrap.Interval(low=1 - width, high=1 + width) if width else None
    return Term(usd=Fraction(1), basis="measured", explained="", interval=interval, **more)


def saved(term: Term, sample_groups: Groups, spreads: dict[str, Spread] | None = None, **changes: Any) -> Alternative:
    way = Alternative(name=DEDICATED, usd=Fraction(5), basis="measured", explained="", bought=BOUGHT)
    borrow, steady = lending.marginal(term, NOT_LENT), STEADY if spreads is None else spreads
    paid = {"borrowed_usd": Fraction(2), "borrowed_loaded_usd": Fraction(3)}
    (done,) = savings.saved([replace(way, **changes)], borrow, sample_groups, steady, **paid)
    assert done.cash is not None
    assert done.cash.usd == (done.added_usd or 0) - 1
    return done


def width(saving: Saving | None) -> float:
    assert saving is not None
    return answers.width(saving.interval)


def why(way: Alternative) -> tuple[object, str | None]:
    assert way.cash is not None
    return way.cash.interval, way.cash.no_interval


def test_what_was_saved_has_the_interval_of_the_marginal_price_or_none(sample_groups: Groups) -> None:
    exact, vague = saved(energy(), sample_groups), saved(energy(4.0), sample_groups)
    assert width(vague.cash) > 6 > width(exact.cash)
    # What the borrowed tokens cost amortized does not rest on m.
    assert width(vague.less) == width(exact.less)
    done = saved(energy(no_interval="a guess"), sample_groups)
    assert why(done) == (None, "energy: a guess")
    assert width(done.less) > 0
    assert why(saved(energy(missing="not enough data"), sample_groups)) == (None, "energy: it is not known")


def test_a_token_s_price_an_offer_s_range_and_an_assumption_count(sample_groups: Groups) -> None:
    plain = saved(energy(), sample_groups)
    unsteady = saved(energy(), sample_groups, {**STEADY, "dedicated": Spread(0.5, 9)})
    ranged = saved(energy(), sample_groups, range=(0.2, 2.0))
    assert width(unsteady.cash) > 2 * width(plain.cash)
    assert width(ranged.less) > 2 * width(plain.less)
    assert why(saved(energy(), sample_groups, basis="assumed")) == (None, "the throughput of other devices is assumed")
    borrowed = {"borrowed": STEADY["borrowed"]}
    assert why(saved(energy(), sample_groups, borrowed)) == (None, UNKNOWN)
    nothing = saved(energy(), sample_groups, borrowed, name=NOTHING, usd=Fraction(0), bought=None)
    assert why(nothing)[1] is None


def test_dedicated_devices_that_sat_idle_leave_only_what_borrowing_added(sample_groups: Groups) -> None:
    idle = saved(energy(), sample_groups, bought=bought(5 * NS_PER_HOUR, 50 * NS_PER_HOUR, 1, "0.001"))
    assert idle.cash is not None
    assert idle.cash.usd == -1
    assert answers.ends(idle.cash.interval)[1] < 0
    assert idle.less is not None
    assert idle.less.usd == 3
    # A few groups say nothing.
    few = Groups.of([dict(row) for row in sample_groups.rows[: bootstrap.UNITS_MIN - 1]])
    assert why(saved(energy(), few)) == (None, bootstrap.TOO_FEW)


def test_what_an_idle_device_would_have_made_for_nothing_is_on_no_bill() -> None:
    assert (LIVE.beyond_ns, LIVE.bought_ns, LIVE.usd) == (0, 0, 0)
    assert bought(37 * NS_PER_S, 76 * NS_PER_S, 2, "1").usd == 0
    # Where the book says so, what exceeds idle time buys whole devices for an hour.
    beyond = bought(37 * NS_PER_S, 36 * NS_PER_S, 2, "1")
    assert (beyond.beyond_ns, beyond.bought_ns, beyond.usd) == (NS_PER_S, NS_PER_HOUR, 2)
    hourly = bought(NS_PER_HOUR, 0, 2, "1")
    assert (hourly.usd, bought(NS_PER_HOUR + 1, 0, 2, "1").usd) == (2, 4)
    assert list(hourly.draws(np.array([0.0, 0.5, 1.0, 1.3]))) == [0, 2, 2, 4]
    # Elsewhere devices are bought by the time used.
    beyond = bought(37 * NS_PER_S, 36 * NS_PER_S, 2)
    assert (beyond.bought_ns, beyond.usd) == (NS_PER_S, Fraction(2, 3600))
    assert list(bought(NS_PER_HOUR, 0, 2).draws(np.array([0.5, 1.0]))) == [1, 2]


def test_an_hour_s_idle_time_makes_no_token_of_another_hour() -> None:
    hour = Fraction(NS_PER_HOUR)
    apart = replace(LIVE, hours={0: (hour, Fraction(0)), NS_PER_HOUR: (hour / 2, 2 * hour)})
    assert (apart.needed_ns, apart.idle_ns, apart.beyond_ns, apart.usd) == (hour * 3 / 2, 2 * hour, hour, 2)
    assert list(apart.draws(np.array([1.0, 2.0, 5.0]))) == [2, 4, 11]
    assert apart.within(0, NS_PER_HOUR) == (Fraction(2, 3), 1)
    # A run with half of the first hour's tokens buys half of what the fleet buys, in the fleet's whole devices.
    fleet = replace(apart, increment_hours=Decimal(3))
    part = replace(fleet, hours={0: (hour / 2, Fraction(0))}, fleet=fleet)
    assert (fleet.usd, part.usd) == (6, 3)


@pytest.mark.parametrize(("hours", "units", "usd"), [("0.01", 2, "0.04"), ("1", 1, "2"), ("8760", 1, "17520")])
def test_the_book_says_the_least_that_can_be_bought(hours: str, units: int, usd: str) -> None:
    least = bought(60 * NS_PER_S, 0, 2, hours)
    assert least.bought_ns == units * Fraction(hours) * NS_PER_HOUR
    assert least.usd == Fraction(usd)


@given(times, times, st.sampled_from(["0.25", "1", "24"]))
def test_purchases_cover_what_is_needed_and_none_is_one_too_many(needed_ns: int, idle_ns: int, hours: str) -> None:
    least = bought(needed_ns, idle_ns, 2, hours)
    assert least.increment_ns is not None
    assert least.bought_ns >= least.beyond_ns
    assert least.bought_ns == 0 or least.bought_ns - least.increment_ns < least.beyond_ns
    assert bought(needed_ns, idle_ns + NS_PER_S, 2, hours).usd <= least.usd
