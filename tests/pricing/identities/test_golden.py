"""Every number that the definitions of pricing state, by the section that states it.

The sections: 1 cost per correct answer, 2 the third price line, 3 the frontier threshold, 4 the marginal price of
idle, 5 the provision, 6 throughput to cost, 9 shipped prices.
"""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from rose.pricing import formulas as f
from rose.pricing.price_books import pricebook
from tests.pricing import reference


def test_section_1_the_verified_cost_per_delivered_token_is_the_plain_case() -> None:
    assert f.cost_correct(cpm=3.5, r=1, rho=0, alpha=1) == 3.5
    assert f.blended_price(1, 3) == 2


def test_section_1_the_formula_and_its_partials() -> None:
    cpm, r, rho, alpha = 2.0, 10.0, 15.0, 0.5
    assert f.cost_correct(cpm, r, rho, alpha) == cpm * r * (1 + rho) / alpha == 640
    assert reference.cost_correct_partials(cpm, r, rho, alpha) == (-1280, 320, 64, 40)


@pytest.mark.parametrize(("phi", "cost"), [(0, 640), (0.5, 370), (1, 100)])
def test_section_2_the_third_price_line(phi: float, cost: float) -> None:
    pi = f.rollout_price_ratio(c_serving=2, c_dedicated=2, c_opportunistic=0.2, borrowed_share=phi)
    assert f.cost_correct(cpm=2, r=10, rho=15, alpha=0.5, pi=pi) == pytest.approx(cost)


def test_section_3_the_threshold_and_both_gains() -> None:
    threshold = reference.frontier(n=8, training=100, eta_n=1.4, eta_t=0.3, usd_per_n=2, usd_per_t=0.5)
    assert threshold.left == pytest.approx(1.3333, abs=5e-5)
    assert threshold.right == pytest.approx(0.32)
    assert threshold.gain_inference_per_usd == pytest.approx(0.025)
    assert threshold.gain_training_per_usd == pytest.approx(0.006)
    assert threshold.left > threshold.right


@pytest.mark.parametrize(("n", "eta"), [(1, 0.893), (4, 0.619), (16, 0.103)])
def test_section_3_independent_best_of_n(n: int, eta: float) -> None:
    assert f.best_of_n_elasticity(0.2, n) == pytest.approx(eta, abs=5e-4)
    # It is the derivative: d ln(alpha) / d ln(n) of alpha = 1 - 0.8^n.
    slope = math.log((1 - 0.8 ** (n * 1.00001)) / (1 - 0.8 ** (n / 1.00001))) / (2 * math.log(1.00001))
    assert f.best_of_n_elasticity(0.2, n) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize(
    ("phi", "ratio", "kappa"), [(0, 0.1, 0.6667), (0.5, 0.1, 0.9732), (1, 0.1, 1.8018), (1, 0, 2.2222)]
)
def test_section_3_the_third_line_moves_the_frontier(phi: float, ratio: float, kappa: float) -> None:
    assert 40 / f.training_spend_with_borrowing(60, 0.7, phi, ratio) == pytest.approx(kappa, abs=5e-5)


@pytest.mark.parametrize(("watts", "usd_per_hour"), [(450, 0.0563), (512.5, 0.0641)])
def test_section_4_energy(watts: float, usd_per_hour: float) -> None:
    assert reference.energy_usd_per_device_s(watts, 1.25, 0.10) * 3600 == pytest.approx(usd_per_hour, abs=5.1e-5)


@pytest.mark.parametrize(("gb", "usd_per_hour"), [(16, 0.48), (1.6, 0.048)])
def test_section_4_transfer(gb: float, usd_per_hour: float) -> None:
    # One copy of the weights every 300 s, shared by eight devices.
    assert reference.transfer_usd_per_device_s(gb, 0.02, 8 * 300) * 3600 == pytest.approx(usd_per_hour)


@pytest.mark.parametrize(("tau_ratio", "wasted", "provision"), [(1, 0, 2.294), (0.6, 0.1, 1.213), (0.4, 0.2, 0.696)])
def test_section_5_break_even_provision(tau_ratio: float, wasted: float, provision: float) -> None:
    break_even = f.break_even_provision(2.35, 0.056, tau_ratio, wasted, wasted_dedicated=0)
    assert break_even == pytest.approx(provision, abs=5e-4)


def test_section_5_the_provision_accrues_and_rolls_forward() -> None:
    assert reference.provision_usd_per_device_s(
        burst_hazard=0.01, extra_violations=3, penalty_usd=0.5
    ) == pytest.approx(0.015)
    # Fewer violations while lent give a negative figure, which stays.
    assert reference.realised_violations_usd([(100, 0.02, 0.01), (50, 0.0, 0.04)], 2.0) == pytest.approx(-2.0)


@pytest.mark.parametrize(
    ("gain", "ratio", "multiplier"), [(1.20, 0, 0.833), (3.31, 0, 0.302), (1.20, 1, 1.667), (3.31, 1, 0.604)]
)
def test_section_6_throughput_to_cost(gain: float, ratio: float, multiplier: float) -> None:
    factor = f.cost_multiplier(gain, ratio)
    assert factor == pytest.approx(multiplier, abs=5e-4)
    assert (factor < 1) == (ratio < gain - 1)


_MAY, _JUNE = date(2026, 5, 1), 1_780_272_000 * 10**9


@pytest.mark.parametrize(
    ("book", "on", "usd_per_hour", "source_date"),
    [
        ("example", date(2025, 10, 1), "1.70", date(2025, 10, 1)),
        ("example", date(2026, 2, 28), "1.70", date(2025, 10, 1)),
        ("example", date(2026, 3, 1), "2.35", date(2026, 3, 1)),
    ],
)
def test_section_9_what_an_h100_costs(book: str, on: date, usd_per_hour: str, source_date: date) -> None:
    at_ns = int(datetime(on.year, on.month, on.day, tzinfo=UTC).timestamp()) * 10**9
    price = pricebook.load(book).device_at("h100-sxm", "serving", at_ns)
    assert (price.usd_per_hour, price.source_date) == (Decimal(usd_per_hour), source_date)
    assert price.source


@pytest.mark.parametrize(("device_class", "low", "high"), [("h100-sxm", "1.99", "5.00"), ("h200", "2.50", "7.00")])
def test_section_9_what_is_offered_on_demand(device_class: str, low: str, high: str) -> None:
    offers = pricebook.load("example").offers_at(device_class, _JUNE)
    prices = [offer.usd_per_hour for offer in offers if offer.commitment.startswith("on demand")]
    assert (min(prices), max(prices)) == (Decimal(low), Decimal(high))
    assert {offer.source_date for offer in offers} == {_MAY}


@pytest.mark.parametrize("book", pricebook.shipped())
def test_section_9_transfer_and_power(book: str) -> None:
    prices = pricebook.load(book)
    assert prices.transfer_at("inter-region", _JUNE).usd_per_gb == Decimal("0.02")
    assert Decimal("0.05") <= prices.transfer_at("internet", _JUNE).usd_per_gb <= Decimal("0.12")
    assert (prices.power_of("h100-sxm").idle_w, prices.power_of("h100-sxm").load_w) == (267, 680)
    if any(price.device_class == "h200" for price in prices.device):
        assert (prices.power_of("h200").idle_w, prices.power_of("h200").load_w) == (80, 593)
