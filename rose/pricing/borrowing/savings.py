"""How much borrowing saved against each alternative (docs/pricing.md). The intervals are from a bootstrap over groups.
In each resample, the marginal cost m, token prices and an offer's price are also drawn, each from its own interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

import numpy as np

from rose.pricing.marginal_cost.marginal import Marginal
from rose.pricing.marginal_cost.terms import Basis
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.run.cost_per_correct import Groups, Resamples, resample
from rose.pricing.run.tokens import UNKNOWN, Spread
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats, Interval
from rose.pricing.stats.uncertainty import Estimate

DEDICATED, LOADED, NOTHING = "dedicated devices", "dedicated devices, fully loaded", "not sharing at all"
SHARE = "it is a share of the fleet's figure, which has the interval"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bought:
    """Dedicated device time that must be bought: in each UTC hour, the needed time that idle devices do not cover."""

    #: By start of the hour: H, device time that its tokens would have taken, and I, idle time paid for, nanoseconds.
    hours: Mapping[int, tuple[Fraction, Fraction]]
    usd_per_device_hour: Fraction
    increment_hours: Decimal | None = None  #: b, the least that can be bought; None where time is bought as it is used.
    fleet: Bought | None = None  #: That of the whole fleet, of which this is an RL run's share.

    def __post_init__(self) -> None:
        assert all(needed >= 0 and idle >= 0 for needed, idle in self.hours.values())
        assert self.increment_hours is None or self.increment_hours > 0

    @property
    def needed_ns(self) -> Fraction:
        return sum((needed for needed, _ in self.hours.values()), Fraction(0))

    @property
    def idle_ns(self) -> Fraction:
        return sum((idle for _, idle in self.hours.values()), Fraction(0))

    @property
    def beyond_ns(self) -> Fraction:
        return sum((max(Fraction(0), needed - idle) for needed, idle in self.hours.values()), Fraction(0))

    @property
    def increment_ns(self) -> Fraction | None:
        return None if self.increment_hours is None else Fraction(self.increment_hours) * NS_PER_HOUR

    @property
    def bought_ns(self) -> Fraction:
        if self.increment_ns is None:
            return self.beyond_ns
        if self.fleet is not None:
            return self.beyond_ns * self.fleet.bought_ns / self.fleet.beyond_ns if self.beyond_ns else Fraction(0)
        return -((-self.beyond_ns) // self.increment_ns) * self.increment_ns

    @property
    def usd(self) -> Fraction:
        return self.bought_ns * self.usd_per_device_hour / NS_PER_HOUR

    def within(self, from_ns: int, to_ns: int) -> tuple[Fraction, Fraction]:
        """Return which share of the needed time, and which share of the bought time, lies in [from_ns, to_ns)."""
        inside = replace(self, hours={at: hour for at, hour in self.hours.items() if from_ns <= at < to_ns})
        needed, beyond = self.needed_ns, self.beyond_ns
        return inside.needed_ns / needed, inside.beyond_ns / beyond if beyond else Fraction(0)

    def draws(self, factors: Floats) -> Floats:
        """Return, for each factor, what `usd` would be if the needed time were multiplied by this factor."""
        beyond = np.zeros_like(factors)
        for needed, idle in self.hours.values():
            beyond += np.maximum(0.0, float(needed) * factors - float(idle))
        if self.increment_ns is not None:
            beyond = np.ceil(beyond / float(self.increment_ns)) * float(self.increment_ns)
        return np.asarray(beyond * float(self.usd_per_device_hour / NS_PER_HOUR), dtype=np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    usd: Fraction
    interval: Interval | None = None
    no_interval: str | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    name: str
    usd: Fraction | None  #: Amortized: device time at its price, whether or not it would have been billed.
    basis: Basis
    explained: str
    why: str | None = None
    bought: Bought | None = None  #: Its addition to the bill; None if unknown, or if another way has the figure.
    interval: Interval | None = None  #: 95% of `usd`.
    added_interval: Interval | None = None  #: 95% of its addition to the bill.
    no_interval: str | None = None
    less: Saving | None = None  #: `usd` less the cost of the borrowed tokens in the same view.
    cash: Saving | None = None  #: Its addition to the bill less that of borrowing.
    range: tuple[float, float] = (1.0, 1.0)  #: The ends of the price book's range, as shares of `usd`.

    @property
    def added_usd(self) -> Fraction | None:
        if self.name == NOTHING:
            return Fraction(0)
        return None if self.bought is None else self.bought.usd


def saved(
    ways: Sequence[Alternative],
    borrow: Marginal,
    groups: Groups,
    spreads: Mapping[str, Spread],
    borrowed_usd: Fraction,
    borrowed_loaded_usd: Fraction,
) -> list[Alternative]:
    """Return each alternative with its saving and the saving's interval. An RL run's share of a fleet's saving has no
    interval. `borrowed_usd` and `borrowed_loaded_usd` are the amortized and the fully loaded cost of borrowing."""
    drawn, charged = resample(groups), borrow.charged_estimate

    def compared(way: Alternative) -> Alternative:
        if way.usd is None:
            return way
        place = "loaded" if way.name == LOADED else "dedicated"
        unknown = SHARE if borrow.on_fleet else _unknown(way, spreads, place)
        draws: dict[str, Floats] = {}
        if drawn is not None and unknown is None:
            needed = _needed(way, drawn, groups, spreads.get(place))
            worked = _moved(drawn, groups, "borrowed_tokens") * spreads["borrowed"].draws(seed=1)
            offered = Estimate(1.0, *way.range).draws(seed=4)
            draws["usd"] = float(way.usd) * needed * offered
            draws["less"] = draws["usd"] - float(borrowed_usd) * worked
            draws["added"] = np.zeros(bootstrap.RESAMPLES) if way.bought is None else way.bought.draws(needed) * offered
            if charged is not None:
                spent = worked * charged.value + charged.draws(seed=3) - charged.value
                draws["cash"] = draws["added"] + float(borrow.let_go_usd) - spent

        def saving(name: str, usd: Fraction, why: str | None = unknown) -> Saving:
            interval = bootstrap.interval(draws[name], drawn.units) if drawn is not None and name in draws else None
            return Saving(usd=usd, interval=interval, no_interval=None if interval else why or bootstrap.TOO_FEW)

        less = cash = None
        if way.name == LOADED:
            less = Saving(usd=way.usd - borrowed_loaded_usd, no_interval="fully loaded borrowing is not sampled")
        elif way.name != NOTHING:
            less = saving("less", way.usd - borrowed_usd)
        if way.added_usd is not None:
            usd = way.added_usd + borrow.let_go_usd - borrow.charged_usd
            cash = saving("cash", usd, borrow.no_interval or unknown)
        whole, added = saving("usd", way.usd), saving("added", Fraction(0))
        return replace(
            way,
            interval=whole.interval,
            added_interval=added.interval,
            no_interval=whole.no_interval,
            less=less,
            cash=cash,
        )

    return [compared(way) for way in ways]


def _unknown(way: Alternative, spreads: Mapping[str, Spread], place: str) -> str | None:
    if way.basis == "assumed":
        return "the throughput of other devices is assumed"
    needed = {"borrowed"} if way.name == NOTHING else {"borrowed", place}
    return None if needed <= spreads.keys() else UNKNOWN


def _needed(way: Alternative, drawn: Resamples, groups: Groups, spread: Spread | None) -> Floats:
    if way.name == NOTHING or spread is None:
        return np.zeros(bootstrap.RESAMPLES)
    useful = _moved(drawn, groups, "borrowed_useful")
    with np.errstate(divide="ignore", invalid="ignore"):
        wasted = _moved(drawn, groups, "dedicated_tokens") / _moved(drawn, groups, "dedicated_useful")
    return np.asarray(useful * wasted * spread.draws(seed=2), dtype=np.float64)


def _moved(drawn: Resamples, groups: Groups, name: str) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(getattr(drawn, name) / float(sum(int(row[name]) for row in groups.rows)), dtype=np.float64)
