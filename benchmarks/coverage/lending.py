"""Simulated lending: power meters, missed budgets and bursts on lent devices and others, with the truth beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from typing import Any

import numpy as np

from benchmarks.coverage.shown import Shown, shown, wandering, within_range
from rose.pricing.borrowing import power, provision
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.terms import Stretches, Term
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook

DAY = date(2026, 6, 1)
FROM_NS = 1_780_272_000_000_000_000
STRETCHES = Stretches(((FROM_NS, FROM_NS + 86_400 * 10**9),))
CLASS = "h100-sxm"
#: Ends of the ranges of the book's power and tariff, as shares of their figures.
POWER_RANGE, TARIFF_RANGE = (0.7, 1.2), (0.75, 1.4)
PENALTY_USD = 0.001
LEASED_S, BORROWED_S = 4000, 3000
IDLE_W, LOAD_W, USD_PER_KWH, PUE = 267, 680, 0.1, 1.25
USD_PER_J = USD_PER_KWH * PUE / 3.6e6
#: Extra watts that lending really draws, and chances of a missed budget by fifth of load.
EXTRA_W = 180.0
LOAD_BINS = 3
#: Requests of a minute beside the one there always is.
REQUESTS = 20
MISS_UNLENT, MISS_LENT = (0.02, 0.04, 0.08), (0.03, 0.06, 0.12)


def book(*, penalty: bool = True, ranges: bool = True) -> PriceBook:
    """The example book with ranges of this benchmark's own, or with none."""
    text = pricebook.load("example").text
    if penalty:
        text = text.replace("violation_usd = 0\n", f"violation_usd = {PENALTY_USD}\n")
    lines = [line for line in text.splitlines() if not line.startswith(("low_share", "high_share"))]
    text = "\n".join(lines)
    if ranges:
        for figure, (low, high) in (("load_w = 680", POWER_RANGE), ("pue = 1.25", TARIFF_RANGE)):
            text = text.replace(figure, f"{figure}\nlow_share = {low}\nhigh_share = {high}")
    return pricebook.parse(text, "simulated")


BOOK, UNRANGED = book(), book(ranges=False)


def metered(random: np.random.Generator, stretches: int) -> list[dict[str, Any]]:
    """Rows of `power_by_load`: five-second readings whose level wanders, summed by five minutes."""
    sums: dict[tuple[int, bool], list[list[float]]] = defaultdict(list)
    for load_bin in range(LOAD_BINS):
        for lent in (True, False):
            level = 30 * random.standard_normal()
            for _ in range(stretches):
                drawn = 0.0
                for _ in range(60):
                    level = 0.8 * level + 18 * random.standard_normal()
                    drawn += 5 * (300 + 60 * load_bin + EXTRA_W * lent + level)
                sums[load_bin, lent].append([drawn * 1000, 300.0])
    return [
        {
            "device_class": CLASS, "load_bin": load_bin, "lent": lent,
            "energy_mw_ns": int(sum(y for y, _ in pairs) * 1e9), "duration_ns": len(pairs) * 300 * 10**9,
            "clusters": len(pairs), "yy": sum(y * y for y, _ in pairs), "yx": sum(y * x for y, x in pairs),
            "xx": sum(x * x for _, x in pairs),
        }
        for (load_bin, lent), pairs in sums.items()
    ]  # fmt: skip


def leased(work: float = 1) -> list[dict[str, Any]]:
    """Rows of `leased_time`, for as much work as usual or another share of it."""
    return [{"device_class": CLASS, "lease_id": None, "segment": 0, "leased_ns": round(work * LEASED_S * 10**9)}]


def lent(work: float = 1) -> list[dict[str, Any]]:
    """Rows of `lent_time`: devices that serve a fifth of their time, and with rollouts work four fifths."""
    ns = round(work * 1000) * 5 * 10**9
    return [
        {
            "lease_id": None, "device_class": CLASS, "segment": 0, "t0_ns": None, "t1_ns": None, "base_piece": 0,
            "busy_piece": 0, "ns": ns, "rollout_ns": BORROWED_S * 10**9, "base_ns": ns // 5, "busy_ns": 4 * ns // 5,
        }
    ]  # fmt: skip


def assumed_w() -> float:
    """Watts that the book's curve gives the rollouts of `lent`, over the whole of their devices' time."""
    return (LOAD_W - IDLE_W) * 3 / 5


def energy_term(random: np.random.Generator, stretches: int, prices: PriceBook, work: float = 1) -> tuple[Term, float]:
    """The energy term of some work, and the truth for the usual work, dollars; assumed without a metered stretch."""
    tariff = within_range(random, *TARIFF_RANGE) if prices is BOOK else 1.0
    readings = power.metered(metered(random, stretches)) if stretches else {}
    joules = EXTRA_W * LEASED_S if stretches else assumed_w() * 5000 * within_range(random, *POWER_RANGE)
    return power.energy(lent(work), leased(work), readings, STRETCHES, prices), joules * USD_PER_J * tariff


def energy(random: np.random.Generator) -> Iterator[Shown]:
    """The energy term where it is metered, for a while or for long, and where it is assumed."""
    for stretches in (3, 6, 24):
        rows = power.metered(metered(random, stretches))
        minutes = f"{stretches * 5} minutes on each side"
        yield shown(f"extra power, {minutes}", EXTRA_W * 1000, rows[CLASS].interval)
        term, truth = energy_term(random, stretches, UNRANGED)
        yield shown(f"energy, metered, {minutes}", truth, term.interval, term.no_interval)
    term, truth = energy_term(random, 10, BOOK)
    yield shown("energy, metered, tariff with a range", truth, term.interval, term.no_interval)
    term, truth = energy_term(random, 2, BOOK)
    yield shown("energy, metered for too short a time", truth, term.interval, term.no_interval, never=True)
    term, truth = energy_term(random, 0, BOOK)
    yield shown("energy, assumed", truth, term.interval, term.no_interval)
    term, truth = energy_term(random, 0, UNRANGED)
    yield shown("energy, assumed, no range in the book", truth, term.interval, term.no_interval, never=True)


def requests(
    random: np.random.Generator, stretches: int = 18, work: float = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], float]:
    """Rows of `violations_by_load` and `violation_spread`, and the misses that lending really added.

    A device is lent in ten minutes or not whatever went before. Misses come together: a minute is as bad as it is, and
    much like the one before.
    """
    bins, spread, truth = [], [], 0.0
    for load_bin in range(LOAD_BINS):
        chances = {True: MISS_LENT[load_bin], False: MISS_UNLENT[load_bin]}
        for is_lent, chance in chances.items():
            count = random.poisson(REQUESTS * (work if is_lent else 1), stretches * 10) + 1
            badness = np.exp(0.7 * wandering(random, stretches * 10, 0.3) - 0.245)
            missed = random.binomial(count, np.minimum(chance * badness, 1))
            x, y = (of.reshape(stretches, 10).sum(axis=1).astype(float) for of in (count, missed))
            bins.append(
                {"lease_id": None, "day": DAY, "load_bin": load_bin, "lent": is_lent, "requests": int(count.sum()),
                 "violations": int(missed.sum())}
            )  # fmt: skip
            spread.append(
                {"load_bin": load_bin, "lent": is_lent, "clusters": stretches, "yy": float(y @ y), "yx": float(y @ x),
                 "xx": float(x @ x)}
            )  # fmt: skip
            if is_lent:
                truth += float(count.sum()) * (chances[True] - chances[False])
    return bins, spread, truth


def provision_term(
    random: np.random.Generator, stretches: int = 18, taken_back: int = 0, work: float = 1
) -> tuple[Term, float]:
    """What missed budgets came to, and what lending really added to them, dollars."""
    bins, spread, extra = requests(random, stretches, work)
    return provision.realised(bins, spread, STRETCHES, BOOK, taken_back=taken_back), extra * PENALTY_USD


def provided(random: np.random.Generator) -> Iterator[Shown]:
    """Realised provision where lending is no consequence of misses, and where leases are taken back as load rises."""
    for stretches in (3, 18):
        term, truth = provision_term(random, stretches)
        minutes = f"{stretches * 10} minutes on each side"
        yield shown(f"provision, lent whatever went before, {minutes}", truth, term.interval, term.no_interval)
    term, truth = provision_term(random, taken_back=3)
    yield shown("provision, leases taken back under load", truth, term.interval, term.no_interval, never=True)


def expected_provision_usd(stretches: int = 18) -> float:
    """What lending adds in missed budgets on average."""
    extra = sum(lent - unlent for lent, unlent in zip(MISS_LENT, MISS_UNLENT, strict=True))
    return stretches * 10 * (REQUESTS + 1) * extra * PENALTY_USD


#: Chance of a rise into the top fifth from one below, and misses of a burst on average.
HAZARD, BURST_LENT, BURST_UNLENT = 0.03, 9.0, 5.0


def bursts(random: np.random.Generator) -> Iterator[Shown]:
    """Rates of bursts, and what a burst costs more on a lent device."""
    windows = 400
    for count in (8, 30):
        rows = []
        for is_lent, mean in ((True, BURST_LENT), (False, BURST_UNLENT)):
            missed = random.poisson(mean * random.lognormal(-0.18, 0.6, count))
            rows.append(
                {"day": DAY, "bin": 1, "lent": is_lent, "bursts": count, "misses": int(missed.sum()),
                 "squares": int(missed @ missed)}
            )  # fmt: skip
        risk = [{"day": DAY, "bin": 1, "windows": windows, "bursts": int(random.binomial(windows, HAZARD))}]
        rate = provision.rates(risk, rows)[1]
        yield shown(f"extra misses of a burst, {count} on each side", BURST_LENT - BURST_UNLENT, rate.extra_interval)
        if count == 30:
            yield shown("bursts an hour", HAZARD / 10, rate.hazard_interval)


def marginal(energy_is: Term, provision_is: Term) -> Marginal:
    """m of these two terms; the others are nothing."""
    nothing = provision.realised([], [], STRETCHES, pricebook.load("example"))
    terms = dict.fromkeys(("transfer", "scheduler", "kv_recompute"), nothing)
    return Marginal(
        terms={"energy": energy_is, **terms, "provision": provision_is}, borrowed_ns=BORROWED_S * 10**9,
        idle_anyway=True,
    )  # fmt: skip
