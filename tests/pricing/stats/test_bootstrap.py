import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Interval

#: First sums of 0 to 4, and of 0 to 299, drawn with replacement.
SMALL = [11.0, 4.0, 16.0, 14.0, 9.0, 12.0]
LARGE = [47154.0, 46039.0, 45963.0]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 10**6)), min_size=2, max_size=12), st.randoms())
def test_the_order_of_the_units_makes_no_difference(units: list[tuple[int, int]], random: object) -> None:
    shuffled = list(units)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    once, again = (bootstrap.sums(np.array(rows, dtype=np.int64)) for rows in (units, shuffled))
    assert once is not None
    assert np.array_equal(once, again)


@pytest.mark.parametrize("size", [5, 300])
def test_each_resample_draws_as_many_units_as_there_are(size: int) -> None:
    drawn = bootstrap.sums(np.stack([np.ones(size, dtype=np.int64), np.arange(size)], axis=1))
    assert drawn is not None
    assert drawn.shape == (bootstrap.RESAMPLES, 2)
    assert (drawn[:, 0] == size).all()
    # The mean of the draws, and their spread, are those of the units.
    error = np.arange(size).std() / math.sqrt(size)
    means = drawn[:, 1] / size
    assert means.mean() == pytest.approx((size - 1) / 2, abs=4 * error / math.sqrt(bootstrap.RESAMPLES))
    assert means.std() == pytest.approx(error, rel=0.1)


def test_the_draws_are_the_same_on_any_machine() -> None:
    small = bootstrap.sums(np.arange(5, dtype=np.int64)[:, None])
    large = bootstrap.sums(np.arange(300, dtype=np.int64)[:, None])
    assert small is not None
    assert large is not None
    assert small[:6, 0].tolist() == SMALL
    assert large[:3, 0].tolist() == LARGE
    assert bootstrap.sums(np.array([[3]], dtype=np.int64)) is None


def made_of_neighbours(carried: float, size: int, seed: int = 1) -> bootstrap.Ints:
    """Units of which each keeps a share of how the one before differed."""
    random, values = np.random.default_rng(seed), np.zeros(size)
    for n in range(1, size):
        values[n] = carried * values[n - 1] + random.standard_normal()
    return np.rint(1000 + 100 * values).astype(np.int64)[:, None]


@pytest.mark.parametrize(("size", "seeds"), [(140, 400), (4000, 30)])
def test_blocks_spread_as_neighbours_that_are_alike_do(size: int, seeds: int) -> None:
    each = [made_of_neighbours(0.6, size, seed) for seed in range(seeds)]
    spreads = [drawn.var() for units in each if (drawn := bootstrap.by_time(units, units)[0]) is not None]
    # The sum has (1 + 0.6) / (1 - 0.6) times the variance of as many independent units; draws have (n - 1) / n of it.
    variance = size * 4 * 100**2 / (1 - 0.6**2)
    assert np.mean(spreads) == pytest.approx(0.9 * variance, rel=0.15)


@pytest.mark.parametrize(("carried", "size", "enough"), [(0.0, 60, True), (0.9, 60, False), (0.9, 2000, True)])
def test_units_that_resemble_their_neighbours_are_wanted_in_greater_number(
    carried: float, size: int, enough: bool
) -> None:
    units = made_of_neighbours(carried, size)
    _, count = bootstrap.by_time(units, units)
    assert count == (bootstrap.BLOCKS if enough else 0)


def test_clusters_are_drawn_as_often_as_each_other() -> None:
    which = bootstrap.drawn_clusters(4)
    assert which.shape == (bootstrap.RESAMPLES, 4)
    assert np.bincount(which.ravel()) / which.size == pytest.approx([0.25] * 4, abs=0.02)


def test_the_interval_is_the_middle_and_undefined_draws_are_the_highest() -> None:
    values = np.arange(1000.0)
    assert bootstrap.interval(values, 10**6) == Interval(low=24.0, high=974.0)
    values[:30] = np.nan
    assert bootstrap.interval(values, 10**6) == Interval(low=54.0, high=None)
    assert bootstrap.interval(np.full(1000, np.inf), 100) is None
    assert bootstrap.interval(np.full(1000, -np.inf), 100) is None


def test_few_units_take_the_ends_further_out_and_too_few_have_none() -> None:
    values = np.arange(2000.0)
    # Eight units: sqrt(8 / 7) * t of 7 degrees of freedom is 2.528, and a normal has 0.574% beyond it.
    assert bootstrap.interval(values, 8) == Interval(low=11.0, high=1987.0)
    # With 40 degrees of freedom 2.161: a normal has 1.536% beyond it.
    assert bootstrap.interval(values, 8, 40) == Interval(low=30.0, high=1968.0)
    assert bootstrap.interval(values, 7) is None
    assert bootstrap.student(7) == pytest.approx(2.3646, abs=1e-4)


def test_figures_are_rounded() -> None:
    # Figures are cut to the digits that every machine has.
    assert bootstrap.rounded(math.pi) == 3.14159265359
    assert bootstrap.rounded(math.pi * (1 + 2e-16)) == bootstrap.rounded(math.pi)
