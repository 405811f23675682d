from __future__ import annotations

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
    partials = f.cost_correct_partials(cpm, r, rho, alpha)
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


def test_useful_token_cost() -> None:
    assert reference.useful_token_cost(
        usd_per_device_s=0.001, tokens_per_device_s=100, wasted_share=0.5
    ) == pytest.approx(2e-5)
    with pytest.raises(ValueError, match="wasted_share"):
        reference.useful_token_cost(1, 1, 1)


@given(st.floats(1, 64), price, st.floats(0.1, 3), st.floats(0.05, 2), price, price)
def test_the_threshold_says_which_gain_is_larger(
    n: float, training: float, eta_n: float, eta_t: float, usd_per_n: float, usd_per_t: float
) -> None:
    frontier = f.frontier(n=n, training=training, eta_n=eta_n, eta_t=eta_t, usd_per_n=usd_per_n, usd_per_t=usd_per_t)
    if not math.isclose(frontier.gain_inference_per_usd, frontier.gain_training_per_usd, rel_tol=1e-6):
        assert frontier.to_inference == (frontier.gain_inference_per_usd > frontier.gain_training_per_usd)


@given(st.floats(0.001, 0.99), st.floats(1, 100))
def test_independent_best_of_n_always_costs_more_with_more_tries(p: float, n: float) -> None:
    assert f.best_of_n_elasticity(p, n) < 1


def test_free_slack_goes_where_it_lowers_cost_more() -> None:
    args = {"n": 8.0, "answers": 1000.0, "eta_t": 0.3, "compute_per_s": 1.0, "training": 1000.0}
    # Inference gains (1.4 / 8) * (10 / 1000) = 0.00175 a second, training 0.3 * 1 / 1000 = 0.0003.
    assert reference.slack_to_inference(eta_n=1.4, rollouts_per_s=10.0, **args)
    assert not reference.slack_to_inference(eta_n=1.4, rollouts_per_s=1.0, **args)


def test_provision_accrues_realises_and_rolls_forward() -> None:
    assert reference.provision_usd_per_device_s(
        burst_hazard=0.01, extra_violations=3, penalty_usd=0.5
    ) == pytest.approx(0.015)
    # Fewer violations while lent give a negative figure, which stays.
    assert reference.realised_violations_usd([(100, 0.02, 0.01), (50, 0.0, 0.04)], 2.0) == pytest.approx(-2.0)
    assert f.provision_closing(opening=10, accrued=7, realised=4, released=1) == 12


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: f.cost_correct(1, 1, 0, 0), "alpha"),
        (lambda: f.cost_correct(1, 1, 0, 1.5), "alpha"),
        (lambda: f.cost_correct(-1, 1, 0, 1), "cpm"),
        (lambda: f.cost_correct(1, 0, 0, 1), "r "),
        (lambda: f.cost_correct(1, 1, float("nan"), 1), "rho"),
        (lambda: reference.transfer_usd_per_device_s(1, 1, 0), "borrowed_device_s"),
        (lambda: f.rollout_price_ratio(0, 1, 1, 0.5), "c_serving"),
        (lambda: f.best_of_n_elasticity(1, 4), "p must"),
        (lambda: f.third_line_threshold(1, 1, 1, 1, 0), "training_spend"),
    ],
)
def test_values_without_meaning_are_refused(call: object, argument: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=argument):
        call()
