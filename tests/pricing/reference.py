"""Formulas of pricing for one rate or one bin, which the tests hold the sums over leases and days against.

Every function raises ValueError, naming the argument, where a value lies outside its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rose.pricing import formulas
from rose.pricing.formulas import _not_negative, _positive, _share

JOULES_PER_KWH = 3.6e6


def useful_token_cost(usd_per_device_s: float, tokens_per_device_s: float, wasted_share: float) -> float:
    """[D] c = p / (tau * (1 - w)): dollars per useful token."""
    _not_negative(usd_per_device_s=usd_per_device_s)
    _positive(tokens_per_device_s=tokens_per_device_s)
    _share(wasted_share=wasted_share)
    if wasted_share == 1:
        raise ValueError("wasted_share must be below 1: no useful token was made, so none has a price")
    return usd_per_device_s / (tokens_per_device_s * (1 - wasted_share))


def slack_to_inference(
    *,
    eta_n: float,
    n: float,
    rollouts_per_s: float,
    answers: float,
    eta_t: float,
    compute_per_s: float,
    training: float,
) -> bool:
    """[D] With slack free: it goes to inference iff (eta_n / n) * (r_I / N) > eta_T * r_T / T.

    `rollouts_per_s` and `compute_per_s` are what one slack device-second yields; `answers` is N.
    """
    _positive(n=n, answers=answers, training=training)
    return (eta_n / n) * (rollouts_per_s / answers) > eta_t * compute_per_s / training


def energy_usd_per_device_s(power_delta_w: float, pue: float, usd_per_kwh: float) -> float:
    """[D] dP * PUE * tariff / 3.6e6."""
    _positive(pue=pue)
    _not_negative(usd_per_kwh=usd_per_kwh)
    return power_delta_w * pue * usd_per_kwh / JOULES_PER_KWH


def transfer_usd_per_device_s(transfer_gb: float, usd_per_gb: float, borrowed_device_s: float) -> float:
    """[D] Bytes moved to the borrowed devices (in 1e9 bytes), priced, over the borrowed device-seconds."""
    _not_negative(transfer_gb=transfer_gb, usd_per_gb=usd_per_gb)
    _positive(borrowed_device_s=borrowed_device_s)
    return transfer_gb * usd_per_gb / borrowed_device_s


def provision_usd_per_device_s(burst_hazard: float, extra_violations: float, penalty_usd: float) -> float:
    """[D] provision(b) = h(b) * E[extra SLO violations | b] * penalty, for each lent device-second in load bin b."""
    _not_negative(burst_hazard=burst_hazard, penalty_usd=penalty_usd)
    return burst_hazard * extra_violations * penalty_usd


def realised_violations_usd(bins: Sequence[tuple[int, float, float]], penalty_usd: float) -> float:
    """[D] Sum over load bins (N_b, v_lent, v_unlent) of N_b * (v_lent - v_unlent) * penalty, not clipped at zero."""
    _not_negative(penalty_usd=penalty_usd)
    return sum(n * (lent - unlent) for n, lent, unlent in bins) * penalty_usd


@dataclass(frozen=True, kw_only=True, slots=True)
class Partials:
    """[A] How cost per correct moves with each factor, the others held: dollars per million, per unit of the factor."""

    alpha: float
    cpm: float
    r: float
    one_plus_rho: float


def cost_correct_partials(cpm: float, r: float, rho: float, alpha: float) -> Partials:
    """[A] dC/d(alpha) = -C/alpha, dC/d(CPM) = C/CPM, dC/dR = C/R, dC/d(1 + rho) = C/(1 + rho)."""
    c = formulas.cost_correct(cpm, r, rho, alpha)
    return Partials(alpha=-c / alpha, cpm=c / cpm, r=c / r, one_plus_rho=c / (1 + rho))
