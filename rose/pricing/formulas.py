"""The formulas of pricing as pure functions.

[D] marks ROSE's own formulas, [A] those that the author of Verification Economics published (ifitsmanu.com: glossary,
The Cost of Being Right, The alpha Asymmetry, The Inference-Time Compute Frontier, Harvesting Serving Slack)."""

from math import log


def blended_price(input_usd_per_million: float, output_usd_per_million: float) -> float:
    """[A] Return CPM: the mean of the price of a million input tokens and the price of a million output tokens."""
    return (input_usd_per_million + output_usd_per_million) / 2


def cost_correct(cpm: float, r: float, rho: float, alpha: float, pi: float = 1.0) -> float:
    """Return dollars per million correct answer tokens: CPM * R * (1 + pi * rho) / alpha. In [A], pi = 1.

    R (`r`) is output tokens / answer tokens. rho is the number of other rollouts per rollout that is kept. alpha is the
    share of answers that the verifier accepts. pi is the price of a rollout token / the price of a serving token."""
    return cpm * r * (1 + pi * rho) / alpha


def rollout_price_ratio(c_serving: float, c_dedicated: float, c_opportunistic: float, borrowed_share: float) -> float:
    """[D] Return pi, the price of a rollout token / the price of a serving token: ((1 - phi) * c_D + phi * c_O) / c_S.
    phi is the borrowed share of useful rollout tokens. c_S, c_D and c_O are the first three arguments, in order."""
    return ((1 - borrowed_share) * c_dedicated + borrowed_share * c_opportunistic) / c_serving


def best_of_n_elasticity(p: float, n: float) -> float:
    """[D] Return by how many percent the chance 1 - (1 - p)^n grows if n grows by 1%. With this chance, at least one of
    n tries succeeds. The result is below 1, so more tries raise the cost per correct answer."""
    miss: float = (1 - p) ** n
    return -n * miss * log(1 - p) / (1 - miss)


def training_spend_with_borrowing(
    training_usd: float, rollout_share: float, borrowed_share: float, cost_ratio: float
) -> float:
    """[D] Return D_T', training dollars with borrowing: D_T * ((1 - psi) + psi * ((1 - phi) + phi * c_O / c_D)). The
    arguments are, in order: D_T, psi (rollouts' share of D_T), phi (borrowed share of rollout tokens) and c_O / c_D."""
    return training_usd * ((1 - rollout_share) + rollout_share * ((1 - borrowed_share) + borrowed_share * cost_ratio))


def break_even_provision(
    p_dedicated: float, m_without_provision: float, tau_ratio: float, wasted_borrowed: float, wasted_dedicated: float
) -> float:
    """[D] Return p_D * tau_O (1 - w_O) / (tau_D (1 - w_D)) - m, in the unit of p_D, such as dollars per device-hour.

    If the provision is above this value, borrowing costs more than buying. p_D is the price of dedicated devices. m is
    the marginal cost without provision. tau is throughput, w the wasted share, O borrowed and D dedicated devices."""
    return p_dedicated * tau_ratio * (1 - wasted_borrowed) / (1 - wasted_dedicated) - m_without_provision


def cost_multiplier(throughput_gain: float, borrowed_over_dedicated_cost: float) -> float:
    """[D] Return M = (1 + p_O g_O / (p_D g_D)) / x, the cost of a useful token with borrowing / without borrowing.
    p_O g_O / (p_D g_D) is borrowed dollars / dedicated dollars. Borrowing raises throughput by the factor x."""
    return (1 + borrowed_over_dedicated_cost) / throughput_gain
