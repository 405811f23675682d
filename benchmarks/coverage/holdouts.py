"""Simulated serving on devices whose leases are withheld at random, with the true cost of lending."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from benchmarks.coverage.shown import Shown, shown, summed, wandering
from rose.config import CoservingConfig
from rose.pricing.marginal_cost import harm
from rose.pricing.marginal_cost.harm import Harm
from rose.pricing.marginal_cost.terms import Stretches
from rose.pricing.price_books import pricebook
from rose.pricing.stats import holdout
from rose.pricing.stats.bootstrap import Floats, Ints

DAY = date(2026, 6, 1)
FROM_NS = 1_780_272_000_000_000_000
NANO = 10**9
MISS_NANO, CURVE_AT, CURVE_NANO = 1_000_000, (0.5, 1.0), (0.0, 500_000.0)
LENDING = f"violation_usd = {MISS_NANO / NANO}\nlatency_usd = [[0.5, 0], [1.0, 0.0005]]\n"
BOOK = Stretches(
    pricebook.parse(pricebook.load("example").text.replace("violation_usd = 0\n", LENDING), "simulated"),
    ((FROM_NS, FROM_NS + 86_400 * 10**9),),
)
USUAL = CoservingConfig()
WINDOW_S, WASHOUT_S = int(USUAL.holdout_window_s), int(USUAL.holdout_washout_s)
#: Prompt tokens of each request, those that serving's cache may have, and the chances of a hit.
PROMPT, CACHED, CACHED_ALONE, CACHED_LENT = 100, 60, 0.9, 0.7


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Requests are slower by the share `slower` while lent, and for `lasts_s` after. A revoked lease returns after
    `away_s`."""

    hours: int = 24
    devices: int = 1
    requests_per_s: float = 0.3
    slower: float = 0.25
    lasts_s: int = 0
    revoked: bool = True
    follows: bool = False  #: Whether devices are lent only while load is low.
    away_s: int = 15
    #: Median share of a budget that requests take without lending, by device in turn.
    budget_share: tuple[float, ...] = (0.45,)


@dataclass(slots=True)
class Served:
    """One device's requests: nano-dollars with and without lending, and the window of each in `keys`."""

    cost: Ints
    cost_alone: Ints
    missed: Ints
    clean: Ints
    cached: Ints
    busy: Floats
    busy_alone: Floats
    keys: Ints


def cost_nano(share: Floats) -> Ints:
    within = np.interp(share, CURVE_AT, CURVE_NANO)
    return np.where(share > 1, MISS_NANO, np.rint(within)).astype(np.int64)


def serve(random: np.random.Generator, fleet: Fleet, device: int) -> Served:
    seconds = fleet.hours * 3600
    load = np.repeat(wandering(random, seconds // 60, 0.9), 60)
    withheld = np.repeat(random.random(seconds // WINDOW_S + 1) < USUAL.holdout_share, WINDOW_S)[:seconds]
    wanted = load < 0.5 if fleet.follows else np.repeat(random.random(seconds // 300 + 1) < 0.8, 300)[:seconds]
    arrived = np.flatnonzero(random.random(seconds) < fleet.requests_per_s * np.exp(0.3 * load - 0.045))
    median = fleet.budget_share[device % len(fleet.budget_share)]
    alone = median * np.exp(0.15 * load[arrived] + 0.35 * random.standard_normal(len(arrived)))
    under = _under_lending(fleet, ~withheld & wanted, arrived, alone)
    took = alone * (1 + fleet.slower * under)
    before = np.concatenate([[False], withheld[WINDOW_S - 1 : seconds - 1 : WINDOW_S]])
    into, number = arrived % WINDOW_S, arrived // WINDOW_S
    clean = withheld[arrived] & (before[number] | (into >= WASHOUT_S))
    cached = random.binomial(CACHED, np.where(under, CACHED_LENT, CACHED_ALONE))
    busy = random.lognormal(0.0, 0.4, len(arrived)) * 0.2
    return Served(
        cost=cost_nano(took),
        cost_alone=cost_nano(alone),
        missed=(took > 1).astype(np.int64),
        clean=clean.astype(np.int64),
        cached=cached,
        busy=busy * (1 + 0.1 * under),
        busy_alone=busy,
        keys=number,
    )


def _under_lending(fleet: Fleet, may_be_lent: Any, arrived: Ints, alone: Floats) -> Ints:
    """Return whether each request meets a lease or its after-effect."""
    seconds = np.arange(len(may_be_lent))
    last = np.maximum.accumulate(np.where(may_be_lent, seconds, -(10**9)))
    under = np.zeros(len(arrived), bool)
    granted_from, revoked_at = 0, -(10**9)
    for n, at in enumerate(arrived.tolist()):
        lent_until = last[at] if last[at] >= granted_from else revoked_at
        if lent_until == at:
            under[n] = True
            if fleet.revoked and alone[n] * (1 + fleet.slower) > 1:
                granted_from, revoked_at = at + fleet.away_s, at
        elif at - lent_until <= fleet.lasts_s:
            under[n] = True
    return under


def measured(devices: list[Served]) -> Harm:
    """Return the comparison by rows of the queries `holdout_sums` and `holdout_clusters`."""
    sums, clusters = [], []
    for name, one in enumerate(devices):
        for clean in (False, True):
            side = one.clean == clean
            named = {"device_id": str(name), "withheld": clean, "day": DAY}
            requests = int(side.sum())
            tokens = {"known_prompt_tokens": PROMPT * requests, "cached_tokens": int(one.cached[side].sum())}
            costs = {"misses": int(one.missed[side].sum()), "cost_nano": int(one.cost[side].sum())}
            sums.append(named | tokens | costs | {"requests": requests, "tokens": PROMPT * requests})
            ones = np.ones(len(one.cost), np.int64)
            for measure, x, y, events in (
                ("cost", ones, one.cost, float(one.cost[side].astype(float) @ one.cost[side])),
                ("cache", PROMPT * ones, one.cached, None),
                ("busy", PROMPT * ones, one.busy * 1e9, None),
            ):
                windows = [np.bincount(one.keys[side], weights=value[side].astype(float)) for value in (x, y)]
                xs, ys = (value[windows[0] > 0] for value in windows)
                clusters.append(named | {"measure": measure} | summed(xs, ys, events))
    strata = {
        name: made
        for name in ("cost", "cache", "busy")
        if (made := holdout.strata([row for row in clusters if row["measure"] == name and row["clusters"]])) is not None
    }
    if "cost" not in strata:
        return Harm(confounded="confounded: too few windows")
    return Harm(sums=sums, clusters=clusters, strata=strata)


FLEETS = {
    "a miss revokes the lease": Fleet(),
    "felt for 40 s more, a miss revokes the lease": Fleet(lasts_s=40),
    "felt for 40 s more, misses are rare": Fleet(lasts_s=40, budget_share=(0.3,)),
    "leases follow load": Fleet(follows=True),
    "nothing is felt": Fleet(slower=0.0),
    "4 devices that differ": Fleet(devices=4, hours=12, lasts_s=40, budget_share=(0.3, 0.45, 0.55)),
}


def holdouts(random: np.random.Generator) -> Iterator[Shown]:
    for name, fleet in FLEETS.items():
        devices = [serve(random, fleet, device) for device in range(fleet.devices)]
        truth = sum(int((one.cost - one.cost_alone).sum()) for one in devices) / NANO
        measures = measured(devices)
        if measures.confounded is None:
            term = harm.realised(measures, BOOK)
            yield shown(f"harm, {name}", truth, term.interval, term.no_interval)
        if fleet.lasts_s and fleet.devices == 1 and measures.confounded is None:
            yield from _besides(name, devices[0], measures)


def _besides(name: str, one: Served, measures: Harm) -> Iterator[Shown]:
    """Yield displaced cached tokens, and serving's extra work."""
    touched = one.busy != one.busy_alone
    truths = {
        "cache": (CACHED * (CACHED_LENT - CACHED_ALONE) * float(touched.sum()), 1.0),
        "busy": (float((one.busy - one.busy_alone).sum()) * NANO, None),
    }
    for measure, (truth, bound) in truths.items():
        if (compared := measures.strata.get(measure)) is not None:
            effect = holdout.effect(compared, bound)
            yield Shown(f"{measure}, {name}", truth, effect.low, effect.high)
