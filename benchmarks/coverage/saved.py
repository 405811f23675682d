"""Simulated savings of borrowing."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np

from benchmarks.coverage import groups, lending
from benchmarks.coverage.groups import ALONE, FLOWS, Flow, Run
from benchmarks.coverage.shown import Shown, shown, within_range
from rose.pricing.borrowing import savings
from rose.pricing.borrowing.savings import DEDICATED, NOTHING, Alternative, Bought
from rose.pricing.marginal_cost.marginal import Marginal
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.run import tokens
from rose.pricing.stats.bootstrap import Interval

SCALE = 6.0  #: Dollars of tokens are multiplied by this, so that tokens and m both matter.
OFFER, OFFER_RANGE = "market offer", (0.8, 1.5)
USD_PER_DEVICE_HOUR = 2.0
#: The increment of a purchase, as a share of the time that is needed: small beside the uncertainty.
INCREMENT_SHARE = 0.002
#: Idle time of dedicated devices as a share of the time that is needed.
IDLE_SHARES = {"no idle dedicated device": 0.0, "dedicated devices idle": 0.4, "dedicated devices idle for more": 50.0}
#: Stated probability that the fleet would have existed anyway, its range, and the dollars at stake as a share of m.
IDLE_ANYWAY, IDLE_ANYWAY_RANGE, AT_STAKE = 0.7, (0.4, 0.9), 2.0


@functools.lru_cache(maxsize=len(groups.FLOWS))
def expected(flow: Flow = ALONE) -> dict[str, float]:
    """Return the mean cost of a run's borrowed tokens, USD, by where they are generated."""
    run, cost = groups.many(flow)
    scale = SCALE * flow.groups / len(run.groups.rows)
    dedicated = float(cost.by_line["dedicated"] or 0) * run.tokens["borrowed"].useful * scale
    borrowed = run.ns["borrowed"] * groups.USD_PER_NS["borrowed"] * scale
    return {DEDICATED: dedicated, OFFER: 0.7 * dedicated, NOTHING: 0.0, "borrowed": borrowed}


def bought(name: str, usd: float, idle_share: float, flow: Flow = ALONE) -> Bought:
    """Return purchases of `usd`, where devices were idle for `idle_share` of the mean need."""
    average = Fraction(expected(flow)[name] * NS_PER_HOUR / USD_PER_DEVICE_HOUR)
    return Bought(
        hours={0: (Fraction(usd * NS_PER_HOUR / USD_PER_DEVICE_HOUR), Fraction(round(idle_share * average)))},
        usd_per_device_hour=Fraction(USD_PER_DEVICE_HOUR),
        increment_hours=Decimal(float(INCREMENT_SHARE * average / NS_PER_HOUR)),
    )


def ways(run: Run, idle_share: float, flow: Flow) -> list[Alternative]:
    usd = {place: run.ns[place] * price for place, price in groups.USD_PER_NS.items()}
    there = SCALE * usd["dedicated"] * run.tokens["borrowed"].useful / run.tokens["dedicated"].useful
    return [
        Alternative(
            name=name,
            usd=Fraction(share * there),
            basis="measured",
            explained="",
            range=OFFER_RANGE if name == OFFER else (1.0, 1.0),
            bought=None if name == NOTHING else bought(name, share * there, idle_share, flow),
        )
        for name, share in ((DEDICATED, 1.0), (OFFER, 0.7), (NOTHING, 0.0))
    ]


def ledger(
    random: np.random.Generator,
    run: Run,
    borrow: Marginal,
    charged_usd: float,
    which: str,
    *,
    never: bool,
    idle: str = "no idle dedicated device",
    flow: Flow = ALONE,
) -> Iterator[Shown]:
    """Yield the savings of one run; `charged_usd` is the true cost of its borrowing."""
    prices = {(place, "simulated"): price for place, price in groups.USD_PER_NS.items()}
    spreads = tokens.spreads(run.blocks, prices)
    borrowed_usd = Fraction(SCALE * run.ns["borrowed"] * groups.USD_PER_NS["borrowed"])
    share = IDLE_SHARES[idle]
    for way in savings.saved(
        ways(run, share, flow), borrow, run.groups, spreads, borrowed_usd=borrowed_usd, borrowed_loaded_usd=borrowed_usd
    ):
        cash = way.cash
        assert cash is not None
        if way.name == NOTHING and share:
            continue  # Without any work idle devices change nothing.
        # The book's figure is a guess, and the truth lies within its range.
        guess = within_range(random, *OFFER_RANGE) if way.name == OFFER else 1.0
        added = 0.0 if way.name == NOTHING else float(bought(way.name, expected(flow)[way.name], share, flow).usd)
        name, truth = f"cash saved against {way.name}: {which}", added * guess - charged_usd
        yield shown(name, truth, cash.interval, cash.no_interval, never=never)
        if way.less is not None and which == flow.name:
            truth = expected(flow)[way.name] * guess - expected(flow)["borrowed"]
            yield shown(f"amortized, less than {way.name}: {flow.name}", truth, way.less.interval, way.less.no_interval)
        if way.name == DEDICATED and which == flow.name:
            yield shown(f"capacity avoided: {flow.name}", expected(flow)[DEDICATED], way.interval, way.no_interval)


def uncertain(random: np.random.Generator, borrow: Marginal) -> tuple[Marginal, float]:
    """Return `borrow` of a fleet that exists with a stated probability, and the true extra charge, USD."""
    at_stake = AT_STAKE * float(borrow.usd)
    low, high = IDLE_ANYWAY_RANGE
    real = IDLE_ANYWAY * within_range(random, low / IDLE_ANYWAY, high / IDLE_ANYWAY)
    stated = replace(
        borrow,
        idle_anyway=Fraction(IDLE_ANYWAY),
        avoidable_usd=Fraction((1 - IDLE_ANYWAY) * at_stake),
        avoidable_interval=Interval(low=(1 - high) * at_stake, high=(1 - low) * at_stake),
    )
    return stated, (1 - real) * at_stake


def saved(random: np.random.Generator) -> Iterator[Shown]:
    for which, hours, prices, withheld, flow in (
        *((flow.name, 24, lending.BOOK, True, flow) for flow in FLOWS),
        ("energy assumed", 0, lending.BOOK, True, ALONE),
        ("energy assumed, no range in the book", 0, lending.UNRANGED, True, ALONE),
        ("leases never withheld", 0, lending.BOOK, False, ALONE),
    ):
        run = groups.simulate(random, flow)
        # Leases last as long as their work.
        work = run.ns["borrowed"] / flow.groups / (groups.many(flow)[0].ns["borrowed"] / groups.MANY)
        energy, energy_usd = lending.energy_term(random, hours, prices, work)
        provision, provision_usd = lending.provision_term(random, work=work, withheld=withheld)
        borrow = lending.marginal(energy, provision)
        true = energy_usd * work + provision_usd
        never = not withheld or prices is lending.UNRANGED
        yield shown(f"m: {which}", true, borrow.interval, borrow.no_interval, never=never)
        expected_usd = energy_usd + lending.expected_provision_usd()
        yield from ledger(random, run, borrow, expected_usd, which, never=never, flow=flow)
        if which == ALONE.name:
            for idle in list(IDLE_SHARES)[1:]:
                yield from ledger(random, run, borrow, expected_usd, idle, never=False, idle=idle)
            stated, avoidable_usd = uncertain(random, borrow)
            yield from ledger(random, run, stated, expected_usd + avoidable_usd, "idle-anyway stated", never=False)
