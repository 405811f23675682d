"""Correlated spikes as figures: what the run would have cost had load and demand risen together. All simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rose.pricing.answers import cost_per_correct
from rose.pricing.borrowing import correlated_load
from rose.pricing.borrowing.correlated_load import Coupled, Fleet
from rose.pricing.borrowing.provision import NO_PENALTY
from rose.pricing.borrowing.report.common import MILLION, Head, counted, head
from rose.pricing.figures import MARGINAL, Figure, Figures
from rose.pricing.money import NS_PER_S
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.run.priced import PricedRun, priced

SIMULATED = "simulated"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeRow:
    """The run at one coupling of serving load and rollout demand."""

    attainment: Figure
    wasted_share: Figure
    #: c_O, dollars per million useful tokens.
    token_cost: Figure
    #: Cost per million answer tokens with rollouts at that price, the borrowed share held.
    c3: Figure
    tail: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikesDocument:
    """Every figure but `dedicated` is simulated, and its stamp says so."""

    head: Head
    windows: Figure
    window: Figure
    observed_r: Figure
    by_r: Mapping[str, SpikeRow]
    dedicated: Figure
    #: What a late request costs, by the price book; where none is set they are counted as nothing.
    penalty: Figure
    #: r*, and in words which side it is on where there is none.
    r_star: Figure
    says: str


def build(
    root: Path,
    run_id: str | None = None,
    price_book: str | Path | PriceBook | None = None,
    allow_unverified: bool = False,
) -> SpikesDocument:
    """Couple the windows of a run anew. Raises what `rose.pricing.run.report.build` raises.

    A run with too few windows, or that made nothing on borrowed devices, gives a document that says so.
    """
    with priced(root, run_id, price_book, allow_unverified) as run:
        return document(run)


def document(run: PricedRun) -> SpikesDocument:
    """The windows of a run that is priced, coupled anew."""
    window_s, windows = _windows(run)
    fleet = _fleet(run, window_s, windows)
    load, demand, requests = (
        np.array([float(row[name]) for row in windows]) for name in ("load", "demand", "requests")
    )
    enough = fleet is not None and len(windows) >= correlated_load.WINDOWS_MIN
    points = correlated_load.coupled(load, demand, requests, fleet) if fleet is not None and enough else ()
    make = Figures(dataclasses.replace(run.stamp, provenance=SIMULATED))
    dedicated = run.cost.by_line["dedicated"]
    r_star = None if dedicated is None else correlated_load.crossing(points, float(dedicated))
    says = _says(points, dedicated, r_star) if enough else _too_little(fleet, window_s, windows)
    return SpikesDocument(
        head=head(run),
        windows=make.number(len(windows), "count"),
        window=make.number(window_s * NS_PER_S, "ns"),
        observed_r=counted(
            make,
            correlated_load.observed(load, demand) if enough else None,
            "ratio",
            why="load or demand never changed",
        ),
        by_r={f"{point.r:g}": _row(make, run, point) for point in points},
        dedicated=run.make.money(
            None if dedicated is None else dedicated * MILLION,
            MARGINAL,
            per="million useful tokens",
            why="not enough data: no useful token was made on dedicated devices",
        ),
        penalty=run.make.money(
            _penalty(run) or None, MARGINAL, per="missed budget", basis="price book", why=NO_PENALTY
        ),
        r_star=_simulated(counted(make, r_star, "ratio", why=says)),
        says=says,
    )


def _windows(run: PricedRun) -> tuple[int, Sequence[Mapping[str, Any]]]:
    """The longest windows there are enough of, else the shortest. One that is hardly covered is left out."""
    kept: Sequence[Mapping[str, Any]] = ()
    for window_s in correlated_load.WINDOWS_S:
        set_variables(run.connection, run_id=run.run.run_id, horizon_ns=window_s * NS_PER_S)
        covered = rows(run.connection, "borrowing/load_and_demand")
        most = max((row["ns"] for row in covered), default=0)
        kept = [row for row in covered if 2 * row["ns"] >= most]
        if len(kept) >= correlated_load.WINDOWS_MIN:
            return window_s, kept
    return correlated_load.WINDOWS_S[-1], kept


def _too_little(fleet: Fleet | None, window_s: int, windows: Sequence[Mapping[str, Any]]) -> str:
    if fleet is None:
        return "not enough data: no token was made on borrowed devices"
    return f"not enough data: {len(windows)} windows of {window_s} s, and it takes {correlated_load.WINDOWS_MIN}"


def _fleet(run: PricedRun, window_s: int, windows: Sequence[Mapping[str, Any]]) -> Fleet | None:
    borrowed = run.tokens["borrowed"]
    if not run.borrow.borrowed_ns or not borrowed.generated or not windows:
        return None
    borrowed_s = run.borrow.borrowed_ns / NS_PER_S
    plain_usd = run.borrow.usd - run.borrow.terms["provision"].usd
    return Fleet(
        device_s_per_window=sum(row["ns"] for row in windows) / len(windows) / NS_PER_S,
        window_s=window_s,
        usd_per_borrowed_s=float(plain_usd) / borrowed_s,
        usd_per_late_request=float(_penalty(run)),
        tokens_per_s=(borrowed.generated - borrowed.by_fate["stale"]) / borrowed_s,
    )


def _penalty(run: PricedRun) -> Fraction:
    return Fraction(run.book.lending_at(run.began_ns).violation_usd)


def _row(make: Figures, run: PricedRun, point: Coupled) -> SpikeRow:
    cost = None if point.usd_per_token is None else Fraction(point.usd_per_token)
    nothing = "nothing of use would have been made"
    c3 = _c3(run, cost)
    return SpikeRow(
        attainment=_simulated(counted(make, point.attainment, "share")),
        wasted_share=_simulated(counted(make, point.wasted_share, "share")),
        token_cost=make.money(
            None if cost is None else cost * MILLION,
            MARGINAL,
            per="million useful tokens",
            basis=SIMULATED,
            why=nothing,
        ),
        c3=make.money(
            None if c3 is None else Fraction(c3),
            MARGINAL,
            per="million answer tokens",
            basis=SIMULATED,
            why="not enough data: a factor of the formula is not known",
        ),
        tail=make.money(Fraction(point.tail_usd_per_hour), MARGINAL, per="hour", basis=SIMULATED),
    )


def _c3(run: PricedRun, opportunistic: Fraction | None) -> float | None:
    """CPM * R * (1 + pi * rho) / alpha, pi with the borrowed tokens at this price."""
    serving, dedicated = run.cost.by_line["serving"], run.cost.by_line["dedicated"]
    phi = run.cost.borrowed_share
    if opportunistic is None or not serving or phi is None or (dedicated is None and phi != 1):
        return None
    pi = ((1 - phi) * (dedicated or 0) + phi * opportunistic) / serving
    return cost_per_correct.formula(run.cpm_usd, run.groups.r, run.groups, pi)


def _says(points: Sequence[Coupled], dedicated: Fraction | None, r_star: float | None) -> str:
    if dedicated is None:
        return "not enough data: no useful token was made on dedicated devices to compare with"
    if r_star is not None:
        return f"borrowing stops being cheaper than dedicated devices at r = {r_star:.2f}"
    first = points[0].usd_per_token
    if first is None:
        return "none in [0, 1]: nothing of use would have been made on borrowed devices"
    side = "cheaper" if first < dedicated else "dearer"
    return f"none in [0, 1]: borrowing is {side} than dedicated devices at every r"


def _simulated(figure: Figure) -> Figure:
    return dataclasses.replace(figure, basis=SIMULATED)
