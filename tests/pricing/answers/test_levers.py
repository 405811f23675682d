from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.answers import levers
from rose.pricing.answers.levers import Factors
from rose.pricing.run.cost_per_correct import Groups
from rose.pricing.run.tokens import FATES, Tokens
from tests.pricing import reference
from tests.pricing.answers.conftest import token_cost

#: The golden figures of the third price line, at phi = 0.5: C3 = 370.
GOLDEN = Factors(
    cpm=2, r=10, one_plus_rho=16, alpha=0.5, phi=0.5, waste=0.2, c_serving=2, c_dedicated=2, c_opportunistic=0.2
)
prices: Any = dict.fromkeys(("cpm", "c_serving", "c_dedicated", "c_opportunistic"), st.floats(0.01, 100))
ratios: Any = {"r": st.floats(1.1, 50), "one_plus_rho": st.floats(1.5, 64)}
shares: Any = {"alpha": st.floats(0.05, 0.9), "phi": st.floats(0.1, 0.9), "waste": st.floats(0.01, 0.8)}
anything = st.builds(Factors, **prices, **ratios, **shares)


@pytest.mark.parametrize(("phi", "cost"), [(0, 640), (0.5, 370), (1, 100)])
def test_the_golden_figures(phi: float, cost: float) -> None:
    assert replace(GOLDEN, phi=phi).cost == pytest.approx(cost)
    # C3 is a straight line in phi, from 640 to 100.
    assert GOLDEN.derivative("phi") == pytest.approx(-540)


@given(anything, st.sampled_from(sorted(levers.WORDS)))
def test_derivatives_are_those_of_c3(at: Factors, name: str) -> None:
    value = getattr(at, name)
    up, down = (at.moved(name, value * (1 + h)).cost for h in (1e-6, -1e-6))
    assert at.derivative(name) == pytest.approx((up - down) / (2e-6 * value), rel=1e-4, abs=1e-6 * at.cost / value)


@given(anything)
def test_where_rollout_tokens_cost_what_serving_s_do_the_partials_are_the_author_s(at: Factors) -> None:
    same = replace(at, c_dedicated=at.c_serving, c_opportunistic=at.c_serving)
    partials = reference.cost_correct_partials(same.cpm, same.r, same.one_plus_rho - 1, same.alpha)
    for name in ("alpha", "cpm", "r", "one_plus_rho"):
        assert same.derivative(name) == pytest.approx(getattr(partials, name))


@given(anything)
def test_levers_are_ranked_by_what_they_save_and_no_move_is_for_the_worse(at: Factors) -> None:
    ranked = levers.levers(at)
    assert {lever.name for lever in ranked} == set(levers.WORDS)
    saved = [lever.saves for lever in ranked]
    assert saved == sorted(saved, reverse=True)
    for lever in ranked:
        assert lever.saves >= -1e-9 * at.cost
        assert lever.saves == pytest.approx(at.cost - at.moved(lever.name, lever.to).cost)
    elasticities = {lever.name: lever.elasticity for lever in ranked}
    assert [elasticities[name] for name in ("cpm", "r", "alpha")] == [pytest.approx(e) for e in (1, 1, -1)]


def test_a_tenth_of_each_by_hand() -> None:
    by_name = {lever.name: lever for lever in levers.levers(GOLDEN)}
    assert by_name["alpha"].to == pytest.approx(0.55)
    assert by_name["alpha"].saves == pytest.approx(370 - 370 / 1.1)
    assert by_name["cpm"].saves == pytest.approx(37)
    assert by_name["phi"].saves == pytest.approx(0.05 * 540)
    # A waste of 0.18 instead of 0.2: rollout tokens cost 0.8 / 0.82 of what they did.
    assert by_name["waste"].saves == pytest.approx(330 * (1 - 0.8 / 0.82))
    # A move stops at the factor's end.
    by_name = {lever.name: lever for lever in levers.levers(replace(GOLDEN, alpha=0.95, phi=1, waste=0, r=1.05))}
    assert (by_name["alpha"].to, by_name["r"].to) == (1, 1)
    assert (by_name["phi"].saves, by_name["waste"].saves) == (0, 0)


def test_the_answer_in_words() -> None:
    text = levers.in_words(levers.levers(GOLDEN))
    assert "a tenth off the list price of a million tokens" in text.lower()
    assert "saves $37.00 on each million answer tokens" in text
    assert "Borrowing more would raise the cost" in levers.in_words(levers.levers(replace(GOLDEN, c_opportunistic=3)))


def test_the_factors_of_a_run() -> None:
    cost = token_cost((2, 2, "1/5", 1), 0.5, 80)
    none = dict.fromkeys(FATES, 0)
    tokens = {
        "borrowed": Tokens(none | {"accepted": 40, "lost": 15}),
        "dedicated": Tokens(none | {"rejected": 40, "stale": 5}),
        "unallocated": Tokens(none | {"lost": 1000}),
    }
    rows = [{"output_tokens": 100, "answer_tokens": 10}]
    groups = Groups(rows=rows, judged_groups=4, judged_groups_trajectories=64, solved_groups=2)
    assert levers.factors(2, cost, tokens, groups) == GOLDEN
    assert levers.factors(2, cost, tokens, replace(groups, solved_groups=0)) is None
    assert levers.factors(2, replace(cost, by_line={**cost.by_line, "serving": None}), tokens, groups) is None
    assert levers.factors(2, replace(cost, by_line={**cost.by_line, "blended": Fraction(-1)}), tokens, groups) is None
