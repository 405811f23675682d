from fractions import Fraction
from itertools import combinations
from math import comb, inf, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing import formulas
from rose.pricing.answers import elasticity
from rose.pricing.answers.elasticity import TrainingStep
from rose.pricing.run.cost_per_correct import Groups
from tests.pricing.answers.conftest import ends, width


def groups(pairs: list[tuple[int, int]], step: int | None = 0) -> Groups:
    rows = [{"trajectories": size, "judged": size, "accepted": accepted, "step": step} for size, accepted in pairs]
    return Groups(rows=rows)


@given(st.integers(0, 8).flatmap(lambda m: st.tuples(st.just(m), st.integers(0, m), st.integers(0, m))))
def test_the_chance_is_the_mean_over_all_subsets(drawn: tuple[int, int, int]) -> None:
    size, accepted, n = drawn
    subsets = list(combinations([True] * accepted + [False] * (size - accepted), n))
    assert elasticity.accepted_of(size, accepted, n) == Fraction(sum(map(any, subsets)), len(subsets))


def test_rollouts_by_hand() -> None:
    # alpha(4) = 30 / 40. Of two of four, one accepted is in 3 of 6 pairs and two accepted in 5 of 6.
    elastic = elasticity.of_rollouts(groups([(4, 0)] * 10 + [(4, 1)] * 20 + [(4, 2)] * 10))
    half = (20 / 2 + 10 * 5 / 6) / 40
    assert elastic.value == pytest.approx(log(0.75 / half) / log(2), abs=1e-8)
    assert elastic.interval is not None
    assert elastic.interval.low <= (elastic.value or 0) <= (elastic.interval.high or inf)
    assert "40 groups: at least one accepted in 45.8% of subsets of 2, in 75.0% of 4" in elastic.says


def test_independent_tries_have_the_elasticity_of_best_of_n() -> None:
    random = np.random.default_rng(3)
    elastic = elasticity.of_rollouts(groups([(8, int(k)) for k in random.binomial(8, 0.2, size=4000)]))
    # The slope between 4 and 8 lies between the elasticities at its ends, and is the one of the curve itself.
    alpha = {n: 1 - 0.8**n for n in (4, 8)}
    assert elastic.value == pytest.approx(log(alpha[8] / alpha[4]) / log(2), abs=0.02)
    assert formulas.best_of_n_elasticity(0.2, 8) < (elastic.value or 0) < formulas.best_of_n_elasticity(0.2, 4) < 1
    assert ends(elastic.interval)[1] < 1


@settings(max_examples=15)
@given(st.randoms())
def test_the_order_of_the_groups_makes_no_difference(random: Any) -> None:
    pairs = [(8, k % 4) for k in range(60)] + [(10, 3), (10, 0)]
    shuffled = list(pairs)
    random.shuffle(shuffled)
    once, again = elasticity.of_rollouts(groups(pairs)), elasticity.of_rollouts(groups(shuffled))
    assert (once.value, once.interval, once.says) == (again.value, again.interval, again.says)


def test_larger_groups_count_by_their_subsets_and_smaller_ones_are_left_out() -> None:
    elastic = elasticity.of_rollouts(groups([(4, 1)] * 40 + [(6, 1)] * 4 + [(2, 2)] * 3))
    whole = (40 + 4 * (1 - comb(5, 4) / comb(6, 4))) / 44
    half = (40 * 0.5 + 4 * (1 - comb(5, 2) / comb(6, 2))) / 44
    assert elastic.value == pytest.approx(log(whole / half) / log(2), abs=1e-8)
    assert "3 smaller groups left out" in elastic.says
    # Of two usual sizes the smaller keeps more groups.
    says = elasticity.of_rollouts(groups([(2, 2)] * 30 + [(4, 2)] * 30)).says
    assert "in 75.0% of subsets of 1, in 91.7% of 2" in says


def test_a_lost_trajectory_counts_as_one_that_was_not_accepted() -> None:
    judged = groups([(4, 1)] * 40)
    for row in judged.rows:
        row["judged"] = 3  # type: ignore[index]
    assert "subsets of 2, in 100.0% of 4" in elasticity.of_rollouts(judged).says


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([], "no group was judged yet"),
        ([(4, 1)] * 29, "29 judged groups of 4 or more trajectories; need 30"),
        ([(4, 0)] * 60 + [(4, 1)] * 4, "4 groups of 4 or more trajectories had an accepted trajectory"),
        ([(1, 1)] * 60, "the usual group has 1 trajectory"),
    ],
)
def test_too_little_gives_no_elasticity_in_rollouts(pairs: list[tuple[int, int]], says: str) -> None:
    elastic = elasticity.of_rollouts(groups(pairs))
    assert (elastic.value, elastic.interval, elastic.draws) == (None, None, None)
    assert elastic.says.startswith("not enough data: ")
    assert says in elastic.says


def power_law(eta: float, count: int = 10, judged: int = 100_000) -> list[TrainingStep]:
    return [
        TrainingStep(trained_ns=10**9 * t, judged=judged, solved=round(judged * 0.1 * t**eta))
        for t in range(1, count + 1)
    ]


@pytest.mark.parametrize("eta", [-0.5, 0, 0.3, 0.9])
def test_training_s_elasticity_is_the_exponent_of_a_power_law(eta: float) -> None:
    elastic = elasticity.of_training([TrainingStep(trained_ns=0, judged=50, solved=1), *power_law(eta)])
    assert elastic.value == pytest.approx(eta, abs=1e-4)
    assert ends(elastic.interval)[0] == pytest.approx(eta, abs=0.05)
    assert "10 steps, 1,000,000 groups; training before them grew 10-fold" in elastic.says


def test_a_step_with_nothing_accepted_has_its_weight_and_flat_noise_is_told_from_nothing() -> None:
    some = power_law(0.5, judged=1000)
    none = TrainingStep(trained_ns=some[0].trained_ns, judged=1000, solved=0)
    assert (elasticity.of_training([none, *some[1:]]).value or 0) > 0.5
    random = np.random.default_rng(5)
    noisy = [TrainingStep(trained_ns=10**9 * t, judged=28, solved=int(random.binomial(28, 0.6))) for t in range(1, 12)]
    elastic = elasticity.of_training(noisy)
    assert elastic.interval is not None
    assert elastic.interval.low <= 0 <= (elastic.interval.high or inf)


def test_steps_that_scatter_beyond_their_groups_widen_the_interval() -> None:
    even = [TrainingStep(trained_ns=10**9 * t, judged=200, solved=100) for t in range(1, 12)]
    uneven = [
        TrainingStep(trained_ns=s.trained_ns, judged=200, solved=60 if n % 2 else 140) for n, s in enumerate(even)
    ]
    assert width(elasticity.of_training(uneven).interval) > 3 * width(elasticity.of_training(even).interval)


@pytest.mark.parametrize(
    ("judged", "says"),
    [
        (power_law(0.3)[:4], "4 steps were judged after the first update; need 5"),
        ([TrainingStep(trained_ns=10**9 * t, judged=2, solved=1) for t in range(1, 7)], "12 judged groups"),
        ([TrainingStep(trained_ns=10**9 * t, judged=20, solved=int(t < 3)) for t in range(1, 7)], "2 groups after"),
        ([TrainingStep(trained_ns=10**9 * t, judged=20, solved=9) for t in range(10, 19)], "training grew 1.8-fold"),
        ([TrainingStep(trained_ns=10**9 * t, judged=20, solved=9 * (t == 6)) for t in range(1, 7)], "at one end"),
    ],
)
def test_too_little_gives_no_elasticity_in_training(judged: list[TrainingStep], says: str) -> None:
    elastic = elasticity.of_training(judged)
    assert elastic.value is None
    assert says in elastic.says


def test_a_step_was_made_with_the_updates_before_it() -> None:
    counts = [(0, 4, 1), (0, 4, 0), (1, 4, 4), (3, 4, 2), (3, 0, 0), (None, 4, 1)]
    rows = [{"step": step, "judged": judged, "accepted": accepted} for step, judged, accepted in counts]
    training = [{"step": 0, "train_ns": 5}, {"step": 1, "train_ns": 7}, {"step": 2, "train_ns": None}]
    assert elasticity.steps(Groups(rows=rows), training) == [
        TrainingStep(trained_ns=0, judged=2, solved=1),
        TrainingStep(trained_ns=5, judged=1, solved=1),
        TrainingStep(trained_ns=12, judged=1, solved=1),
    ]
