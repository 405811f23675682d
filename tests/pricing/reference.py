from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rose.pricing import formulas

JOULES_PER_KWH = 3.6e6


def useful_token_cost(usd_per_device_s: float, tokens_per_device_s: float, wasted_share: float) -> float:
    """[D] c = p / (tau * (1 - w)): dollars per useful token."""
    return usd_per_device_s / (tokens_per_device_s * (1 - wasted_share))


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """[A] Where the next dollar lowers the cost per correct answer faster: inference if `left > right`."""

    left: float
    right: float
    #: [D] Relative fall in cost per correct, per dollar more: negative where more rollouts raise it.
    gain_inference_per_usd: float
    gain_training_per_usd: float


def frontier(*, n: float, training: float, eta_n: float, eta_t: float, usd_per_n: float, usd_per_t: float) -> Frontier:
    """[A] Compare (eta_rho - 1) / eta_T with D_I / D_T.

    [D] This is exact with n = 1 + rho, D_I = p_I n and D_T = p_T T. Then dlnC/dD_I = (1 - eta_n) / D_I and dlnC/dD_T =
    -eta_T / D_T. Each eta is an elasticity of alpha."""
    inference_usd, training_usd = usd_per_n * n, usd_per_t * training
    return Frontier(
        left=(eta_n - 1) / eta_t,
        right=inference_usd / training_usd,
        gain_inference_per_usd=(eta_n - 1) / inference_usd,
        gain_training_per_usd=eta_t / training_usd,
    )


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
    """[D] Whether free slack goes to inference: (eta_n / n) * (r_I / N) > eta_T * r_T / T.

    `rollouts_per_s` and `compute_per_s` are of one slack device-second; `answers` is N.
    """
    return (eta_n / n) * (rollouts_per_s / answers) > eta_t * compute_per_s / training


def energy_usd_per_device_s(power_delta_w: float, pue: float, usd_per_kwh: float) -> float:
    """[D] dP * PUE * tariff / 3.6e6."""
    return power_delta_w * pue * usd_per_kwh / JOULES_PER_KWH


def transfer_usd_per_device_s(transfer_gb: float, usd_per_gb: float, borrowed_device_s: float) -> float:
    """[D] Bytes moved to borrowed devices (in 1e9 bytes), priced, for each borrowed device-second."""
    return transfer_gb * usd_per_gb / borrowed_device_s


def provision_usd_per_device_s(burst_hazard: float, extra_violations: float, penalty_usd: float) -> float:
    """[D] provision(b) = h(b) * E[extra SLO violations | b] * penalty, for a lent device-second in load bin b."""
    return burst_hazard * extra_violations * penalty_usd


def realised_violations_usd(bins: Sequence[tuple[int, float, float]], penalty_usd: float) -> float:
    """[D] Sum over load bins (N_b, v_lent, v_unlent) of N_b * (v_lent - v_unlent) * penalty, not clipped at zero."""
    return sum(n * (lent - unlent) for n, lent, unlent in bins) * penalty_usd


class Partials(NamedTuple):
    alpha: float
    cpm: float
    r: float
    one_plus_rho: float


def cost_correct_partials(cpm: float, r: float, rho: float, alpha: float) -> Partials:
    """[A] dC/d(alpha) = -C/alpha, dC/d(CPM) = C/CPM, dC/dR = C/R, dC/d(1 + rho) = C/(1 + rho)."""
    c = formulas.cost_correct(cpm, r, rho, alpha)
    return Partials(alpha=-c / alpha, cpm=c / cpm, r=c / r, one_plus_rho=c / (1 + rho))
