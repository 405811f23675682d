"""Simulates that serving load and rollout demand rise together, with a correlation r (docs/pricing.md). At r = 1, the
highest load meets the highest demand. This pairing costs the most (supermodularity)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, pi, sin, sqrt

import numpy as np

from rose.pricing.figures import MARGINAL, Figure, Figures
from rose.pricing.marginal_cost.missed_budgets import NO_PENALTY
from rose.pricing.marginal_cost.terms import Row
from rose.pricing.money import NS_PER_S
from rose.pricing.query import rows, set_variables
from rose.pricing.run import cost_per_correct
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats.bootstrap import Floats, Ints, rounded
from rose.pricing.table import Paragraph, Section, Table, report_table, values
from rose.pricing.table import Row as Cells

COUPLINGS = (0.0, 0.25, 0.5, 0.75, 1.0)
WINDOWS_MIN = 30  #: Fewest windows to pair.
WINDOWS_S = (3600, 60)  #: Windows are hours if there are so many of them, or else minutes.

_SEED = 0
_TAIL = 0.01
_DRAWS = (20, 200)
_PAIRS = 2_000_000
SIMULATED = "simulated"
WINDOWS, WINDOW, OBSERVED, R_STAR = "windows", "length of a window", "r as observed", "r*"
ON_DEDICATED, PENALTY = "a million useful tokens on dedicated devices", "a late request"
_NO_DEDICATED = "not enough data: no useful token was made on dedicated devices"
_MILLION = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Inputs of the simulation: a window's size, prices and tokens. Device-seconds are sums over serving devices."""

    device_s_per_window: float
    window_s: int
    usd_per_borrowed_s: float
    usd_per_late_request: float
    tokens_per_s: float  #: Tokens of a borrowed second that are not stale.


@dataclass(frozen=True, slots=True)
class Coupled:
    """The figures of a run at one correlation r. `usd_per_token` (c_O) is None if there are no useful tokens."""

    r: float
    attainment: float
    wasted_share: float
    usd_per_token: float | None
    tail_usd_per_hour: float


def coupled(load: Floats, demand: Floats, requests: Floats, fleet: Fleet) -> tuple[Coupled, ...]:
    """Return the simulated figures for each correlation r in COUPLINGS. Each figure is a mean over random pairings of
    the windows' loads with the windows' demands. The pairings are seeded. The arrays have one value for each window."""
    order = np.argsort(load, kind="stable")
    s, served, q = load[order], requests[order], np.sort(demand)
    return tuple(_at(r, s, served, q, fleet) for r in COUPLINGS)


def pairing(r: float, size: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw `size` pairs (x, y) of normal variables with correlation r. Return the ranks of x and the ranks of y."""
    first, other = random.standard_normal((2, size))
    second = r * first + sqrt(1 - r * r) * other
    return np.argsort(np.argsort(first)), np.argsort(np.argsort(second))


def observed(load: Floats, demand: Floats) -> float | None:
    """Return the observed correlation r of load and demand: 2 sin(pi * rho / 6), where rho is their rank correlation.
    Return None if load or demand never changes."""
    from scipy.stats import rankdata

    one, other = rankdata(load), rankdata(demand)
    if one.std() == 0 or other.std() == 0:
        return None
    return rounded(2 * sin(pi * float(np.corrcoef(one, other)[0, 1]) / 6))


def crossing(points: Sequence[Coupled], usd_per_token: float) -> float | None:
    """Return r*, the correlation at which a borrowed token costs as much as a dedicated one, `usd_per_token`. It is
    interpolated between `points`. Return None if there is no such correlation."""
    for (low_r, low), (high_r, high) in pairwise([(point.r, point.usd_per_token) for point in points]):
        if low is None or high is None:
            continue
        if min(low, high) <= usd_per_token <= max(low, high) and low != high:
            return rounded(low_r + (high_r - low_r) * (usd_per_token - low) / (high - low))
    return None


def _at(r: float, s: Floats, served: Floats, q: Floats, fleet: Fleet) -> Coupled:
    size = len(s)
    random = np.random.default_rng(_SEED)
    draws = 1 if r == 1 else max(_DRAWS[0], min(_DRAWS[1], _PAIRS // size))  # Sorted values have one pairing.
    sums = np.zeros(5)
    for _ in range(draws):
        of_s, of_q = pairing(r, size, random)
        load, arrived, demand = s[of_s], served[of_s], q[of_q]
        beyond = np.maximum(load + demand - 1, 0)
        beyond[beyond < 1e-12] = 0  # A rounding error must not make a window full.
        late = arrived * np.minimum(1, np.divide(beyond, load, out=np.zeros(size), where=load > 0))
        usd = demand * fleet.device_s_per_window * fleet.usd_per_borrowed_s + late * fleet.usd_per_late_request
        dearest = np.sort(usd)[-ceil(_TAIL * size) :]
        sums += np.array([(beyond == 0).mean(), beyond.sum(), usd.sum(), (demand - beyond).sum(), dearest.mean()])
    attained, beyond_, usd_, useful, dearest_ = sums / draws
    tokens = useful * fleet.device_s_per_window * fleet.tokens_per_s
    wasted_share = rounded(beyond_ / q.sum()) if q.sum() > 0 else 0.0
    usd_per_token = rounded(usd_ / tokens) if tokens > 0 else None
    return Coupled(r, rounded(attained), wasted_share, usd_per_token, rounded(dearest_ * 3600 / fleet.window_s))


def spikes(run: PricedRun) -> Section:
    window_s, windows = _windows(run)
    penalty = Fraction(run.book.lending_at(run.run.began_ns).violation_usd)
    fleet = _fleet(run, window_s, windows, penalty)
    load, demand, requests = (
        np.array([float(row[name]) for row in windows]) for name in ("load", "demand", "requests")
    )
    points = coupled(load, demand, requests, fleet) if fleet is not None and len(windows) >= WINDOWS_MIN else ()
    make = Figures(replace(run.stamp, provenance=SIMULATED))
    dedicated = run.cost.by_line["dedicated"]
    per_million = None if dedicated is None else dedicated * _MILLION
    r_star = None if dedicated is None else crossing(points, float(dedicated))
    if fleet is None:
        says = "not enough data: no token was made on borrowed devices"
    elif not points:
        says = f"not enough data: need {WINDOWS_MIN} windows of {window_s} s, have {len(windows)}"
    else:
        says = _says(points, dedicated, r_star)
    figures = {
        WINDOWS: make.number(len(windows), "count"),
        WINDOW: make.number(window_s * NS_PER_S, "ns"),
        OBSERVED: make.measure(observed(load, demand) if points else None, why="load or demand never changed"),
        ON_DEDICATED: run.make.money(per_million, MARGINAL, per="million useful tokens", why=_NO_DEDICATED),
        PENALTY: run.make.money(penalty or None, MARGINAL, per="missed budget", basis="price book", why=NO_PENALTY),
        R_STAR: make.measure(r_star, basis=SIMULATED, why=says),
    }
    parts: dict[str, Table | Paragraph] = {"says": Paragraph(says)}
    if points:
        parts["coupled"] = report_table(
            make.stamp,
            "If serving load and rollout demand rose together",
            "r | windows that fit | wasted | per million tokens | per M answer tokens (C3) | dearest 1%, an hour",
            (_row(make, run, point) for point in points),
            view=MARGINAL,
            notes=("Simulated: the run's windows in new pairs. If no penalty is set, late requests cost nothing.",),
        )
    parts["windows"] = values("What the simulation rests on", figures, make.stamp, "counts and prices")
    return Section(parts)


def _windows(run: PricedRun) -> tuple[int, Sequence[Row]]:
    """Return the length of a window in seconds, and the windows. A window is left out if it has less than half of the
    device time of the fullest window. The length is the first of WINDOWS_S with WINDOWS_MIN windows, or the last."""
    kept: Sequence[Row] = ()
    for window_s in WINDOWS_S:
        set_variables(run.connection, run_id=run.run.run_id, horizon_ns=window_s * NS_PER_S)
        rows(run.connection, "borrowing/window_pieces")
        covered = rows(run.connection, "borrowing/load_and_demand")
        most = max((row["ns"] for row in covered), default=0)
        kept = [row for row in covered if 2 * row["ns"] >= most]
        if len(kept) >= WINDOWS_MIN:
            return window_s, kept
    return WINDOWS_S[-1], kept


def _fleet(run: PricedRun, window_s: int, windows: Sequence[Row], penalty: Fraction) -> Fleet | None:
    borrowed = run.tokens["borrowed"]
    if not run.borrow.borrowed_ns or not borrowed.generated or not windows:
        return None
    borrowed_s = run.borrow.borrowed_ns / NS_PER_S
    plain_usd = run.borrow.usd - run.borrow.terms["provision"].usd
    return Fleet(
        device_s_per_window=sum(row["ns"] for row in windows) / len(windows) / NS_PER_S,
        window_s=window_s,
        usd_per_borrowed_s=float(plain_usd) / borrowed_s,
        usd_per_late_request=float(penalty),
        tokens_per_s=(borrowed.generated - borrowed.by_fate["stale"]) / borrowed_s,
    )


def _row(make: Figures, run: PricedRun, point: Coupled) -> Cells:
    cost = None if point.usd_per_token is None else Fraction(point.usd_per_token)
    per_million = None if cost is None else cost * _MILLION

    def money(usd: Fraction | float | None, per: str, why: str = "") -> Figure:
        return make.money(None if usd is None else Fraction(usd), MARGINAL, per=per, basis=SIMULATED, why=why)

    return (
        f"{point.r:g}",
        make.measure(point.attainment, "share", basis=SIMULATED),
        make.measure(point.wasted_share, "share", basis=SIMULATED),
        money(per_million, "million useful tokens", "nothing of use would have been made"),
        money(_c3(run, cost), "million answer tokens", "not enough data: a factor of the formula is not known"),
        money(point.tail_usd_per_hour, "hour"),
    )


def _c3(run: PricedRun, opportunistic: Fraction | None) -> float | None:
    serving, dedicated = run.cost.by_line["serving"], run.cost.by_line["dedicated"]
    phi = run.cost.borrowed_share
    if opportunistic is None or not serving or phi is None or (dedicated is None and phi != 1):
        return None
    price_ratio = ((1 - phi) * (dedicated or 0) + phi * opportunistic) / serving
    return cost_per_correct.formula(run.cpm_usd, run.groups.r, run.groups, price_ratio)


def _says(points: Sequence[Coupled], dedicated: Fraction | None, r_star: float | None) -> str:
    if dedicated is None:
        return f"{_NO_DEDICATED} to compare with"
    if r_star is not None:
        return f"borrowing stops being cheaper than dedicated devices at r = {r_star:.2f}"
    if (first := points[0].usd_per_token) is None:
        return "none in [0, 1]: nothing of use would have been made on borrowed devices"
    side = "cheaper" if first < dedicated else "dearer"
    return f"none in [0, 1]: borrowing is {side} than dedicated devices at every r"
