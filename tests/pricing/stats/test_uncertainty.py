import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.stats.bootstrap import BLOCKS, interval
from rose.pricing.stats.uncertainty import (
    EFFECT_MIN,
    Clusters,
    Estimate,
    effective_trials,
    mean,
    more_units,
    ratio_variance,
    total,
    welch,
    wilson,
)
from tests.pricing.answers.conftest import ends


def test_newcombe_s_own_example() -> None:
    # 56 of 70 against 48 of 80: the published interval of the difference is 0.0524 to 0.3339.
    parts = [Estimate(56 / 70, *wilson(56 / 70, 70)), Estimate(48 / 80, *wilson(48 / 80, 80)).times(-1)]
    assert ends(total(parts)) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    # No miss in a few requests is not certainty.
    assert wilson(0, 10) == (0, pytest.approx(0.2775, abs=5e-5))
    assert wilson(1, 10) == pytest.approx((1 - 0.2775, 1), abs=5e-5)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1, 100)), min_size=2, max_size=10))
def test_the_variance_of_a_ratio_is_that_of_its_residuals(pairs: list[tuple[float, float]]) -> None:
    y, x = sum(y for y, _ in pairs), sum(x for _, x in pairs)
    expected = len(pairs) / (len(pairs) - 1) * sum((b - a * y / x) ** 2 for b, a in pairs) / x**2
    assert ratio_variance(y, x, Clusters.of(pairs)) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_one_cluster_says_nothing_of_the_spread() -> None:
    assert ratio_variance(3, 4, Clusters.of([(3, 4)])) is None
    assert effective_trials(3, 4, Clusters.of([(3, 4)])) == 1


def test_misses_that_come_together_count_for_less() -> None:
    together = Clusters.of([(10.0, 10.0)] * 5 + [(0.0, 10.0)] * 5)
    apart = Clusters.of([(5.0, 10.0)] * 10)
    # Each cluster of ten tells as much as one request, but for n / (n - 1) and (z / t)^2 with 9 degrees of freedom.
    assert effective_trials(50, 100, together) == pytest.approx(9 * (1.96 / 2.262) ** 2, rel=1e-3)
    assert effective_trials(50, 100, together, freedom=1e9) == pytest.approx(9)
    assert effective_trials(50, 100, apart) == pytest.approx(100 / EFFECT_MIN)
    # Where nothing was missed, or everything, each cluster counts as one trial.
    assert effective_trials(0, 100, Clusters.of([(0.0, 10.0)] * 10)) == 10
    assert effective_trials(100, 100, Clusters.of([(10.0, 10.0)] * 10)) == 10


@given(st.floats(0.01, 1), st.floats(0.01, 10), st.integers(8, 500))
def test_less_variance_and_a_larger_effect_take_fewer_units(effect: float, error: float, units: int) -> None:
    def more(effect: float, error: float) -> int:
        wanted = more_units(Estimate(effect, effect - 1.96 * error, effect + 1.96 * error), units)
        assert wanted is not None
        return wanted

    assert more(effect, error) == more(-effect, error) >= more(effect, error / 2)
    assert more(effect, error) >= more(2 * effect, error)
    assert (more(effect, error) == 0) == (effect > 1.96 * error)
    assert more_units(Estimate(0, -error, error), units) is None


def test_the_units_that_it_takes_tell_an_effect_four_times_in_five() -> None:
    random, effect = np.random.default_rng(3), 0.25
    spread = 1 / np.sqrt(20)
    more = more_units(Estimate(effect, effect - 1.96 * spread, effect + 1.96 * spread), 20)
    # n = (1.96 + 0.8416)^2 / 0.25^2
    assert more == 126 - 20
    means = random.normal(effect, 1 / np.sqrt(20 + more), 4000)
    assert (np.abs(means) > 1.96 / np.sqrt(20 + more)).mean() == pytest.approx(0.8, abs=0.02)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Readings of a minute share a level of their own: taken as independent, the interval would be far too narrow."""
    draw = random.Random(1)
    hits = 0
    for _ in range(300):
        minutes = []
        for _ in range(15):
            level = draw.gauss(500, 20)
            minutes.append((sum(draw.gauss(level, 5) for _ in range(20)), 20.0))
        y, x = sum(y for y, _ in minutes), sum(x for _, x in minutes)
        variance = ratio_variance(y, x, Clusters.of(minutes))
        assert variance is not None
        estimate = mean(y / x, [(variance, len(minutes) - 1)])
        hits += estimate.low <= 500 <= estimate.high
    assert 0.88 <= hits / 300 <= 0.98


def test_a_sum_of_nothing_has_no_interval_and_a_sign_turns_one_round() -> None:
    assert total([]) is None
    assert Estimate(1, 0, 3).times(-2) == Estimate(-2, -6, 0)
    assert ends(total([Estimate(1.0, 0.0, 3.0)])) == (0, 3)


def test_few_readings_have_the_tails_of_student_s_t() -> None:
    assert mean(10.0, [(4.0, 2)]).high == pytest.approx(10 + 4.303 * 2, rel=1e-4)
    assert mean(10.0, []) == mean(10.0, [(0.0, 5)]) == Estimate(10.0, 10.0, 10.0)
    # Two alike add their degrees of freedom; one that varies little hardly counts.
    assert welch([(4.0, 5), (4.0, 5)]) == pytest.approx(10)
    assert welch([(4.0, 5), (1e-9, 5)]) == pytest.approx(5)


def test_a_factor_that_is_not_known_widens_and_keeps_the_value() -> None:
    assert Estimate(10.0, 10.0, 10.0).widened(0.7, 1.2) == Estimate(10.0, 7.0, 12.0)
    assert Estimate(-10.0, -10.0, -10.0).widened(0.7, 1.2) == Estimate(-10.0, -12.0, -7.0)
    assert ends(Estimate(10.0, 6.0, 13.0).widened(0.7, 1.4).interval) == pytest.approx((10 - 5, 10 + 5))
    assert Estimate(1.0, 0.0, 3.0).plus(2) == Estimate(3.0, 2.0, 5.0)


def test_draws_of_an_estimate_spread_as_its_interval_says() -> None:
    drawn = Estimate(1.0, 0.0, 4.0).draws(seed=7)
    # Drawn beside ten blocks, it has its own ends in an interval of ten blocks.
    assert ends(interval(drawn, BLOCKS)) == pytest.approx((0, 4), abs=0.3)
    assert np.median(drawn) == pytest.approx(1, abs=0.1)
    assert (Estimate(1.0, 0.9, 1.0).draws(seed=7) <= 1).all()
    assert list(np.argsort(Estimate(1.0, 0.0, 2.0).draws_like(np.array([3.0, 1.0, 2.0])))) == [1, 2, 0]
