"""Simulated lending with the truth: power meters, missed budgets and bursts."""

from collections.abc import Iterator
from datetime import date
from fractions import Fraction
from typing import Any

import numpy as np

from benchmarks.coverage.shown import Shown, shown, summed, wandering, within_range
from rose.config import CoservingConfig
from rose.pricing.borrowing import provision
from rose.pricing.marginal_cost import harm, missed_budgets, power
from rose.pricing.marginal_cost.harm import Harm
from rose.pricing.marginal_cost.marginal import Marginal
from rose.pricing.marginal_cost.power import Metered
from rose.pricing.marginal_cost.terms import Stretches, Term
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.stats import holdout

DAY = date(2026, 6, 1)
FROM_NS = 1_780_272_000_000_000_000
SPANS = ((FROM_NS, FROM_NS + 86_400 * 10**9),)
CLASS = "h100-sxm"
#: Ranges of the book's power and tariff, as shares of their figures.
POWER_RANGE, TARIFF_RANGE = (0.7, 1.2), (0.75, 1.4)
PENALTY_USD, PENALTY_NANO = 0.001, 1_000_000
LEASED_S, BORROWED_S = 4000, 3000
IDLE_W, LOAD_W, USD_PER_KWH, PUE = 267, 680, 0.1, 1.25
USD_PER_J = USD_PER_KWH * PUE / 3.6e6
USUAL = CoservingConfig()
STEP_S = 5  #: Seconds of a reading.
STEPS, WASHOUT = int(USUAL.holdout_window_s) // STEP_S, int(USUAL.holdout_washout_s) // STEP_S
BUSY = 0.5  #: Load at which a lease that follows load ends.
EXTRA_W = 180.0  #: Watts that lending draws on an idle device; less where serving works too.
#: Cases: whether leases follow load, and the chance of a burst in a window.
METER_CASES: dict[str, tuple[bool, float]] = {
    "leases end at random": (False, 0.0),
    "leases follow load": (True, 0.0),
    "leases follow load, bursts": (True, 0.05),
}
WINDOWS, REQUESTS = 600, 20  #: Mean requests of a window beside the one that each has.
MISS_UNLENT, MISS_LENT = 0.05, 0.075


def book(*, ranges: bool = True) -> PriceBook:
    """Return the example book with or without this benchmark's ranges."""
    text = pricebook.load("example").text.replace("violation_usd = 0\n", f"violation_usd = {PENALTY_USD}\n")
    lines = [line for line in text.splitlines() if not line.startswith(("low_share", "high_share"))]
    text = "\n".join(lines)
    if ranges:
        for figure, (low, high) in (("load_w = 680", POWER_RANGE), ("pue = 1.25", TARIFF_RANGE)):
            text = text.replace(figure, f"{figure}\nlow_share = {low}\nhigh_share = {high}")
    return pricebook.parse(text, "simulated")


BOOK, UNRANGED = (Stretches(book(ranges=ranges), SPANS) for ranges in (True, False))


def leased(work: float = 1) -> list[dict[str, Any]]:
    return [{"device_class": CLASS, "segment": 0, "leased_ns": round(work * LEASED_S * 10**9)}]


def lent(work: float = 1) -> list[dict[str, Any]]:
    """Return rows of `lent_time`: serving takes a fifth of the time, with rollouts four fifths."""
    ns = round(work * 1000) * 5 * 10**9
    times = {"ns": ns, "rollout_ns": BORROWED_S * 10**9, "base_ns": ns // 5, "busy_ns": 4 * ns // 5}
    return [{"device_class": CLASS, "segment": 0, "t0_ns": None, "t1_ns": None, **times, "unexplained_ns": 0}]


def read_meter(
    random: np.random.Generator, hours: float, case: str, device_class: str
) -> tuple[list[dict[str, Any]], float]:
    """Return rows of `power_by_window`, and the watts that lending drew. Power bends with load."""
    follows, burst = METER_CASES[case]
    windows = int(hours * 3600 / USUAL.holdout_window_s)
    withheld = random.random(windows) < USUAL.holdout_share
    slow = np.repeat(wandering(random, windows, 0.9), STEPS) + 0.6 * random.standard_normal(windows * STEPS)
    slow += 3 * np.repeat(random.random(windows) < burst, STEPS)
    load = 1 / (1 + np.exp(0.4 - slow))
    wanted = np.repeat(random.random(windows * 4) < 0.7, STEPS // 4)
    leased = ~np.repeat(withheld, STEPS) & (load < BUSY if follows else wanted)
    extra = leased * EXTRA_W * (1 - load)
    level = np.repeat(15 * wandering(random, windows, 0.5), STEPS) + 8 * random.standard_normal(windows * STEPS)
    watts = 150 + 400 * load**0.7 + level + extra
    number, into = np.divmod(np.arange(windows * STEPS), STEPS)
    before = np.concatenate([[False], withheld[:-1]])
    clean = withheld[number] & (before[number] | (into >= WASHOUT))
    rows = []
    for name, side in ((None, np.ones_like(clean)), (False, ~clean), (True, clean)):
        y = np.bincount(number[side], weights=watts[side] * 1000 * STEP_S, minlength=windows)
        x = np.bincount(number[side], minlength=windows) * float(STEP_S)
        rows.append(
            {"device_class": device_class, "device_id": "d", "withheld": name}
            | summed(x[x > 0], y[x > 0])
            | {"energy_mw_ns": round(y.sum()) * 10**9, "duration_ns": round(x.sum()) * 10**9}
            | {"leased_ns": int((leased & side).sum()) * STEP_S * 10**9}
            | {"leased_mw_ns": round((watts * 1000)[leased & side].sum()) * STEP_S * 10**9}
        )
    return rows, float(extra.sum() / leased.sum())


def energy_term(
    random: np.random.Generator, hours: float, prices: Stretches, work: float = 1, case: str = "leases follow load"
) -> tuple[Term, float]:
    """Return the energy term of some work and the truth for the usual work, USD; assumed if `hours` is 0."""
    tariff = within_range(random, *TARIFF_RANGE) if prices is BOOK else 1.0
    readings: dict[str, Metered] = {}
    if hours:
        rows, watts = read_meter(random, hours, case, CLASS)
        readings, joules = power.metered(rows, None), LEASED_S * watts
    else:
        # The book's curve gives the rollouts of `lent` so many watts over their devices' time.
        joules = (LOAD_W - IDLE_W) * 3 / 5 * 5000 * within_range(random, *POWER_RANGE)
    return power.energy(lent(work), leased(work), readings, prices), joules * USD_PER_J * tariff


def energy(random: np.random.Generator) -> Iterator[Shown]:
    for case in METER_CASES:
        for hours in (12.0, 48.0):
            cost, truth = energy_term(random, hours, UNRANGED, case=case)
            yield shown(f"energy, {case}, {hours:g} hours", truth, cost.interval, cost.no_interval)
    for name, hours, prices, never in (
        ("metered, tariff with a range", 24, BOOK, False),
        ("metered for too short a time", 0.5, UNRANGED, True),
        ("assumed", 0, BOOK, False),
        ("assumed, no range in the book", 0, UNRANGED, True),
    ):
        cost, truth = energy_term(random, hours, prices)
        yield shown(f"energy, {name}", truth, cost.interval, cost.no_interval, never=never)


def provision_term(random: np.random.Generator, work: float = 1, *, withheld: bool = True) -> tuple[Term, float]:
    """Return the cost of missed budgets, and lending's true part of it, USD. Each window resembles the one before."""
    drawn = random.random(WINDOWS) < 0.1
    count = random.poisson(REQUESTS * np.where(drawn, 1.0, work)) + 1
    badness = np.exp(0.7 * wandering(random, WINDOWS, 0.3) - 0.245)
    missed = random.binomial(count, np.minimum(np.where(drawn, MISS_UNLENT, MISS_LENT) * badness, 1))
    rows = []
    for side in (True, False):
        x, y = (values[drawn == side].astype(float) for values in (count, missed))
        named = {"device_id": "d", "withheld": side, "day": DAY, "measure": "cost"}
        counts = {"requests": int(x.sum()), "misses": int(y.sum()), "cost_nano": int(y.sum()) * PENALTY_NANO}
        rows.append(named | counts | summed(x, PENALTY_NANO * y, PENALTY_NANO**2 * float(y.sum())))
    truth = float(count[~drawn].sum()) * (MISS_LENT - MISS_UNLENT) * PENALTY_USD
    if not withheld:
        bins = [{**row, "load_bin": 0, "lent": not row["withheld"], "violations": row["misses"]} for row in rows]
        return missed_budgets.confounded(bins, BOOK, "confounded: no lease was withheld"), truth
    strata = holdout.strata(rows)
    assert strata is not None, "so many windows are enough"
    return harm.realised(Harm(sums=rows, clusters=rows, strata={"cost": strata}), BOOK), truth


def expected_provision_usd() -> float:
    return WINDOWS * 0.9 * (REQUESTS + 1) * (MISS_LENT - MISS_UNLENT) * PENALTY_USD


HAZARD = 0.03  #: Chance of a rise into the top fifth from one below.


def bursts(random: np.random.Generator) -> Iterator[Shown]:
    windows = 400
    risk = [{"day": DAY, "bin": 1, "windows": windows, "bursts": int(random.binomial(windows, HAZARD))}]
    yield shown("bursts an hour", HAZARD / 10, provision.rates(risk, [])[1].hazard_interval)


def marginal(energy_is: Term, provision_is: Term) -> Marginal:
    nothing = Term(usd=Fraction(0), basis="price book", explained="nothing")
    terms = dict.fromkeys(("transfer", "scheduler", "kv_recompute"), nothing)
    return Marginal(
        terms={"energy": energy_is, **terms, "provision": provision_is},
        borrowed_ns=BORROWED_S * 10**9,
        idle_anyway=Fraction(1),
    )
