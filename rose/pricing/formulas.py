"""The formulas of pricing as pure functions, which raise ValueError for an argument without meaning.

[A] marks formulas that the author of Verification Economics published (ifitsmanu.com: Verification Economics glossary,
The Cost of Being Right, The alpha Asymmetry, The Inference-Time Compute Frontier, Harvesting Serving Slack). [D] marks
formulas that ROSE derives."""

from dataclasses import dataclass
from math import log


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value!r}")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value!r}")


def _share(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1, got {value!r}")


def blended_price(input_usd_per_million: float, output_usd_per_million: float) -> float:
    """[A] Return CPM, the mean price of a million input and a million output tokens."""
    _not_negative(input_usd_per_million=input_usd_per_million, output_usd_per_million=output_usd_per_million)
    return (input_usd_per_million + output_usd_per_million) / 2


def cost_correct(cpm: float, r: float, rho: float, alpha: float, pi: float = 1.0) -> float:
    """[A] at pi = 1. Return dollars per million correct answer tokens: CPM * R * (1 + pi * rho) / alpha.

    `r` is billed output over answer tokens, `rho` rollouts per kept rollout, and `alpha` the verifier's accept rate."""
    _not_negative(cpm=cpm, rho=rho, pi=pi)
    _positive(r=r, alpha=alpha)
    _share(alpha=alpha)
    return cpm * r * (1 + pi * rho) / alpha


def rollout_price_ratio(c_serving: float, c_dedicated: float, c_opportunistic: float, borrowed_share: float) -> float:
    """[D] Return pi = ((1 - phi) * c_D + phi * c_O) / c_S, where phi is the borrowed share of useful rollout tokens."""
    _positive(c_serving=c_serving)
    _not_negative(c_dedicated=c_dedicated, c_opportunistic=c_opportunistic)
    _share(borrowed_share=borrowed_share)
    return ((1 - borrowed_share) * c_dedicated + borrowed_share * c_opportunistic) / c_serving


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
    _positive(n=n, training=training, eta_t=eta_t, usd_per_n=usd_per_n, usd_per_t=usd_per_t)
    inference_usd, training_usd = usd_per_n * n, usd_per_t * training
    return Frontier(
        left=(eta_n - 1) / eta_t,
        right=inference_usd / training_usd,
        gain_inference_per_usd=(eta_n - 1) / inference_usd,
        gain_training_per_usd=eta_t / training_usd,
    )


def best_of_n_elasticity(p: float, n: float) -> float:
    """[D] Return the elasticity in n of 1 - (1 - p)^n, which is below 1: more tries raise the cost per correct."""
    _positive(p=p, n=n)
    if p >= 1:
        raise ValueError(f"p must be below 1, got {p!r}")
    miss: float = (1 - p) ** n
    return -n * miss * log(1 - p) / (1 - miss)


def training_spend_with_borrowing(
    training_usd: float, rollout_share: float, borrowed_share: float, cost_ratio: float
) -> float:
    """[D] Return D_T' = D_T * ((1 - psi) + psi * ((1 - phi) + phi * c_O / c_D)); psi is D_T's rollout share."""
    _positive(training_usd=training_usd)
    _share(rollout_share=rollout_share, borrowed_share=borrowed_share)
    _not_negative(cost_ratio=cost_ratio)
    return training_usd * ((1 - rollout_share) + rollout_share * ((1 - borrowed_share) + borrowed_share * cost_ratio))


def third_line_threshold(
    inference_usd: float, training_usd: float, rollout_share: float, borrowed_share: float, cost_ratio: float
) -> float:
    """[D] Return kappa3 = D_I / D_T', the right side of the frontier if a part of the rollouts is borrowed."""
    _positive(inference_usd=inference_usd)
    spend = training_spend_with_borrowing(training_usd, rollout_share, borrowed_share, cost_ratio)
    _positive(training_spend=spend)
    return inference_usd / spend


def provision_closing(opening: int, accrued: int, realised: int, released: int) -> int:
    """[D] Return opening + accrued - realised - released, in nano-dollars."""
    return opening + accrued - realised - released


def break_even_provision(
    p_dedicated: float, m_without_provision: float, tau_ratio: float, wasted_borrowed: float, wasted_dedicated: float
) -> float:
    """[D] Return p_D * tau_O (1 - w_O) / (tau_D (1 - w_D)) - m, in dollars per device-time.

    A provision above this value makes borrowing dearer than buying. `tau_ratio` is tau_O / tau_D."""
    _not_negative(p_dedicated=p_dedicated, m_without_provision=m_without_provision, tau_ratio=tau_ratio)
    _share(wasted_borrowed=wasted_borrowed, wasted_dedicated=wasted_dedicated)
    if wasted_dedicated == 1:
        raise ValueError("wasted_dedicated must be below 1: nothing useful was made on dedicated devices")
    return p_dedicated * tau_ratio * (1 - wasted_borrowed) / (1 - wasted_dedicated) - m_without_provision


def cost_multiplier(throughput_gain: float, borrowed_over_dedicated_cost: float) -> float:
    """[D] Return M = (1 + p_O g_O / (p_D g_D)) / x: the cost with borrowing over the cost without, for a gain x."""
    _positive(throughput_gain=throughput_gain)
    _not_negative(borrowed_over_dedicated_cost=borrowed_over_dedicated_cost)
    return (1 + borrowed_over_dedicated_cost) / throughput_gain
