"""What borrowing would cost if serving load and rollout demand rose together [D]. Everything here is simulated.

Serving load S and rollout demand Q, both shares of the serving devices' time, are taken from the windows of a run and
paired anew: a Gaussian copula of correlation r on their ranks, so that each keeps its own distribution. At r = 1 both
are sorted, which is the exact worst case for every supermodular loss, such as max(S + Q - 1, 0).

In a window, what does not fit, x = max(S + Q - 1, 0), is rollout time that is lost and serving that comes late:

- attainment: share of windows with S + Q <= 1;
- wasted: sum of x / sum of Q;
- late requests: those of the window times min(1, x / S);
- cost: Q at m without its provision, and the penalty for each late request;
- c_O: cost over tau * (1 - w) * (Q - x), tokens of a rollout second that is not lost, w the stale share;
- tail: the mean cost of the dearest hundredth of windows, for an hour (CVaR at 99%).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, pi, sin, sqrt

import numpy as np

from rose.pricing.stats.bootstrap import Floats, Ints, rounded

COUPLINGS = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Fewest windows to pair.
WINDOWS_MIN = 30
#: Windows are hours if there are so many of them, or else minutes.
WINDOWS_S = (3600, 60)

_SEED = 0
_TAIL = 0.01
_DRAWS = (20, 200)
_PAIRS = 2_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """What a window costs and yields. Prices in dollars; a device-second is one of the whole serving fleet's."""

    device_s_per_window: float
    window_s: int
    usd_per_borrowed_s: float
    usd_per_late_request: float
    #: Tokens of a borrowed second that are not stale.
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Coupled:
    """The run as it would have been at one r. c_O is None where nothing of use would have been made."""

    r: float
    attainment: float
    wasted_share: float
    usd_per_token: float | None
    tail_usd_per_hour: float


def coupled(load: Floats, demand: Floats, requests: Floats, fleet: Fleet) -> tuple[Coupled, ...]:
    """Each of COUPLINGS, the mean over seeded draws; the same draws for all.

    `load`, `demand` (shares of device time) and `requests` have one value for each window, shape (windows,).
    """
    order = np.argsort(load, kind="stable")
    s, served, q = load[order], requests[order], np.sort(demand)
    return tuple(_at(r, s, served, q, fleet) for r in COUPLINGS)


def pairing(r: float, size: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Ranks (shape (size,) each) of two normals of correlation r."""
    first, other = random.standard_normal((2, size))
    second = r * first + sqrt(1 - r * r) * other
    return np.argsort(np.argsort(first)), np.argsort(np.argsort(second))


def observed(load: Floats, demand: Floats) -> float | None:
    """The r at which a Gaussian copula has the rank correlation that was observed: 2 sin(pi * rho / 6).

    None where one of them never changes.
    """
    one, other = _mean_ranks(load), _mean_ranks(demand)
    if one.std() == 0 or other.std() == 0:
        return None
    return rounded(2 * sin(pi * float(np.corrcoef(one, other)[0, 1]) / 6))


def crossing(points: Sequence[Coupled], usd_per_token: float) -> float | None:
    """r*: where c_O reaches a dedicated token's price, on straight lines between couplings; None if it nowhere does."""
    costs = [(point.r, point.usd_per_token) for point in points]
    for (low_r, low), (high_r, high) in pairwise(costs):
        if low is None or high is None:
            continue
        if min(low, high) <= usd_per_token <= max(low, high) and low != high:
            return rounded(low_r + (high_r - low_r) * (usd_per_token - low) / (high - low))
    return None


def _at(r: float, s: Floats, served: Floats, q: Floats, fleet: Fleet) -> Coupled:
    size = len(s)
    random = np.random.default_rng(_SEED)
    # Sorted is one pairing only.
    draws = 1 if r == 1 else max(_DRAWS[0], min(_DRAWS[1], _PAIRS // size))
    sums = np.zeros(5)
    for _ in range(draws):
        of_s, of_q = pairing(r, size, random)
        load, arrived, demand = s[of_s], served[of_s], q[of_q]
        beyond = np.maximum(load + demand - 1, 0)
        # Rounding alone must not make a window full.
        beyond[beyond < 1e-12] = 0
        late = arrived * np.minimum(1, np.divide(beyond, load, out=np.zeros(size), where=load > 0))
        usd = demand * fleet.device_s_per_window * fleet.usd_per_borrowed_s + late * fleet.usd_per_late_request
        dearest = np.sort(usd)[-ceil(_TAIL * size) :]
        sums += np.array([(beyond == 0).mean(), beyond.sum(), usd.sum(), (demand - beyond).sum(), dearest.mean()])
    attained, beyond_, usd_, useful, dearest_ = sums / draws
    tokens = useful * fleet.device_s_per_window * fleet.tokens_per_s
    return Coupled(
        r=r,
        attainment=rounded(attained),
        wasted_share=rounded(beyond_ / q.sum()) if q.sum() > 0 else 0.0,
        usd_per_token=rounded(usd_ / tokens) if tokens > 0 else None,
        tail_usd_per_hour=rounded(dearest_ * 3600 / fleet.window_s),
    )


def _mean_ranks(values: Floats) -> Floats:
    """Ranks, equal values sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: Floats = (ends - (counts - 1) / 2)[inverse]
    return means
