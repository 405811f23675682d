import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing import formulas as f
from tests.pricing import reference

price = st.floats(0.01, 1e3)
share = st.floats(0.01, 1)


@given(price, st.floats(1, 50), st.floats(0, 63), share)
def test_partials_are_the_derivatives(cpm: float, r: float, rho: float, alpha: float) -> None:
    partials = reference.cost_correct_partials(cpm, r, rho, alpha)
    h = 1e-6

    def slope(up: float, down: float, width: float) -> float:
        return (up - down) / width

    c = f.cost_correct
    width = 2 * h * alpha * 0.5
    low, high = alpha * (1 - h), alpha * (1 - h) + width
    if high <= 1:
        assert partials.alpha == pytest.approx(slope(c(cpm, r, rho, high), c(cpm, r, rho, low), width), rel=1e-4)
    assert partials.cpm == pytest.approx(slope(c(cpm + h, r, rho, alpha), c(cpm, r, rho, alpha), h), rel=1e-3)
    assert partials.r == pytest.approx(slope(c(cpm, r + h, rho, alpha), c(cpm, r, rho, alpha), h), rel=1e-3)
    assert partials.one_plus_rho == pytest.approx(slope(c(cpm, r, rho + h, alpha), c(cpm, r, rho, alpha), h), rel=1e-3)


@given(price, price, price, st.floats(0, 0.9))
def test_cost_falls_with_borrowing_exactly_when_borrowed_tokens_are_cheaper(
    serving: float, dedicated: float, opportunistic: float, phi: float
) -> None:
    if math.isclose(dedicated, opportunistic, rel_tol=1e-6):
        return

    def cost(share: float) -> float:
        return f.cost_correct(2, 10, 15, 0.5, f.rollout_price_ratio(serving, dedicated, opportunistic, share))

    assert (cost(phi + 0.1) < cost(phi)) == (opportunistic < dedicated)


@given(st.floats(0.001, 0.99), st.floats(1, 100))
def test_independent_best_of_n_always_costs_more_with_more_tries(p: float, n: float) -> None:
    assert f.best_of_n_elasticity(p, n) < 1
