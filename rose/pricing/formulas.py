"""The formulas of pricing as pure functions.

[A] marks formulas that the author of Verification Economics published (ifitsmanu.com: Verification Economics glossary,
The Cost of Being Right, The alpha Asymmetry, The Inference-Time Compute Frontier, Harvesting Serving Slack). [D] marks
formulas that ROSE derives."""

from math import log


def blended_price(input_usd_per_million: float, output_usd_per_million: float) -> float:
    """[A] Return CPM, the mean price of a million input and a million output tokens."""
    return (input_usd_per_million + output_usd_per_million) / 2


def cost_correct(cpm: float, r: float, rho: float, alpha: float, pi: float = 1.0) -> float:
    """Return dollars per million correct answer tokens: CPM * R * (1 + pi * rho) / alpha. Published ([A]) for pi = 1.

    `r` is output tokens / answer tokens, `rho` rollouts besides each kept one, `alpha` the verifier's accept rate."""
    return cpm * r * (1 + pi * rho) / alpha


def rollout_price_ratio(c_serving: float, c_dedicated: float, c_opportunistic: float, borrowed_share: float) -> float:
    """[D] Return pi = ((1 - phi) * c_D + phi * c_O) / c_S. Here phi is the borrowed share of useful rollout tokens."""
    return ((1 - borrowed_share) * c_dedicated + borrowed_share * c_opportunistic) / c_serving


def best_of_n_elasticity(p: float, n: float) -> float:
    """[D] Return the elasticity in n of 1 - (1 - p)^n. It is below 1: more tries raise the cost per correct answer."""
    miss: float = (1 - p) ** n
    return -n * miss * log(1 - p) / (1 - miss)


def training_spend_with_borrowing(
    training_usd: float, rollout_share: float, borrowed_share: float, cost_ratio: float
) -> float:
    """[D] Return D_T' = D_T * ((1 - psi) + psi * ((1 - phi) + phi * c_O / c_D)); psi: rollouts' share of D_T."""
    return training_usd * ((1 - rollout_share) + rollout_share * ((1 - borrowed_share) + borrowed_share * cost_ratio))


def break_even_provision(
    p_dedicated: float, m_without_provision: float, tau_ratio: float, wasted_borrowed: float, wasted_dedicated: float
) -> float:
    """[D] Return p_D * tau_O (1 - w_O) / (tau_D (1 - w_D)) - m, in dollars per device-time.

    A provision above this value makes borrowing dearer than buying. `tau_ratio` is tau_O / tau_D."""
    return p_dedicated * tau_ratio * (1 - wasted_borrowed) / (1 - wasted_dedicated) - m_without_provision


def cost_multiplier(throughput_gain: float, borrowed_over_dedicated_cost: float) -> float:
    """[D] Return M = (1 + p_O g_O / (p_D g_D)) / x: cost with borrowing / cost without, if throughput grows x times."""
    return (1 + borrowed_over_dedicated_cost) / throughput_gain
