"""Correlated spikes as tables: what the run would have cost had load and demand risen together. All simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from rose.pricing.answers import cost_per_correct
from rose.pricing.borrowing import correlated_load
from rose.pricing.borrowing.correlated_load import Coupled, Fleet
from rose.pricing.borrowing.provision import NO_PENALTY
from rose.pricing.figures import MARGINAL, Figures
from rose.pricing.money import NS_PER_S
from rose.pricing.query import rows, set_variables
from rose.pricing.run.priced import PricedRun
from rose.pricing.table import Paragraph, Row, Section, Table, columns, values

SIMULATED = "simulated"
#: Rows beside the couplings.
WINDOWS, WINDOW, OBSERVED, R_STAR = "windows", "length of a window", "r as observed", "r*"
ON_DEDICATED, PENALTY = "a million useful tokens on dedicated devices", "a late request"
_MILLION = 10**6


def spikes(run: PricedRun) -> Section:
    """Return the windows of a run, coupled anew; with too few of them, why there is nothing to see."""
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
    observed = correlated_load.observed(load, demand) if enough else None
    figures = {
        WINDOWS: make.number(len(windows), "count"),
        WINDOW: make.number(window_s * NS_PER_S, "ns"),
        OBSERVED: make.measure(observed, why="load or demand never changed"),
        ON_DEDICATED: run.make.money(
            None if dedicated is None else dedicated * _MILLION,
            MARGINAL,
            per="million useful tokens",
            why="not enough data: no useful token was made on dedicated devices",
        ),
        PENALTY: run.make.money(
            _penalty(run) or None, MARGINAL, per="missed budget", basis="price book", why=NO_PENALTY
        ),
        R_STAR: make.measure(r_star, basis=SIMULATED, why=says),
    }
    parts: dict[str, Table | Paragraph] = {"says": Paragraph(says)}
    if points:
        parts["coupled"] = Table(
            title="If serving load and rollout demand rose together",
            view=MARGINAL,
            stamp=make.stamp,
            columns=columns(
                "r", "fits", "wasted", "per million tokens", "per M answer tokens (C3)", "dearest 1%, an hour"
            ),
            rows=tuple(_row(make, run, point) for point in points),
            notes=("Simulated: the run's windows paired anew. Where no penalty is set, late requests cost nothing.",),
        )
    parts["windows"] = values("What the simulation rests on", figures, make.stamp, "counts and prices")
    return Section(parts)


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


def _row(make: Figures, run: PricedRun, point: Coupled) -> Row:
    """The run at one coupling; C3 is with rollouts at that price, the borrowed share held."""
    cost = None if point.usd_per_token is None else Fraction(point.usd_per_token)
    c3 = _c3(run, cost)
    return (
        f"{point.r:g}",
        make.measure(point.attainment, "share", basis=SIMULATED),
        make.measure(point.wasted_share, "share", basis=SIMULATED),
        make.money(
            None if cost is None else cost * _MILLION,
            MARGINAL,
            per="million useful tokens",
            basis=SIMULATED,
            why="nothing of use would have been made",
        ),
        make.money(
            None if c3 is None else Fraction(c3),
            MARGINAL,
            per="million answer tokens",
            basis=SIMULATED,
            why="not enough data: a factor of the formula is not known",
        ),
        make.money(Fraction(point.tail_usd_per_hour), MARGINAL, per="hour", basis=SIMULATED),
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
