"""What borrowing saved against each other way to the same tokens, and how well that is known [D].

T useful tokens were made on borrowed devices. On dedicated ones, at their throughput tau and wasted share w, they would
have taken H = T / (tau * (1 - w)) device-seconds.

- *Capacity avoided* = H * price of a dedicated device. Hypothetical: nobody would have been billed for it.
- *Cash saved* = what the bill would have been without borrowing, less what it is:

      bought = b * ceil(max(0, H - I) / b)
      cash saved = bought * price + let go - m - avoidable

  I is the idle time of the dedicated devices that did rollouts in the run: they were paid for, and would have made part
  of the tokens for nothing. What exceeds it would have bought device time in whole units of b, the book's
  `bought_in_hours`; where that is left out just as much as is needed, as the fleet itself is charged. *Let go* is the
  price of dedicated devices while they were given up because of borrowing, by recorded decisions alone (`scale_down`).
  m is what borrowing added to the bill, *avoidable* the serving devices kept for lending (`marginal`). Below zero,
  borrowing cost more cash than it saved.

The two are never added: they price the same tokens. Their 95% intervals are a bootstrap over groups (tokens and waste
of a group belong together, dollars follow the tokens made), with m and the price of a token, here and there, drawn from
their own intervals at the same time, and an offer from the price book's range. There is none where m has none, or where
the other way's throughput is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

import numpy as np

from rose.pricing.answers.cost_per_correct import Groups, Resamples, resample
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.terms import Basis
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.run.token_spread import UNKNOWN, Spread
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats, Interval
from rose.pricing.stats.uncertainty import Estimate

DEDICATED, LOADED, NOTHING = "dedicated devices", "dedicated devices, fully loaded", "not sharing at all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bought:
    """What one way to the borrowed tokens would have made the fleet buy."""

    #: Device time that the tokens would have taken, H, and what of it was idle and paid for, I; nanoseconds.
    needed_ns: Fraction
    idle_ns: int
    usd_per_device_hour: Fraction
    #: The least that can be bought of a device, b; None where it is bought by the time used.
    increment_hours: Decimal | None = None

    def __post_init__(self) -> None:
        assert self.needed_ns >= 0
        assert self.idle_ns >= 0
        assert self.increment_hours is None or self.increment_hours > 0

    @property
    def beyond_ns(self) -> Fraction:
        """Device time that no idle device had."""
        return max(Fraction(0), self.needed_ns - self.idle_ns)

    @property
    def increment_ns(self) -> Fraction | None:
        return None if self.increment_hours is None else Fraction(self.increment_hours) * NS_PER_HOUR

    @property
    def bought_ns(self) -> Fraction:
        """Device time that would have been bought."""
        if self.increment_ns is None:
            return self.beyond_ns
        return -((-self.beyond_ns) // self.increment_ns) * self.increment_ns

    @property
    def usd(self) -> Fraction:
        """What would have been added to the bill."""
        return self.bought_ns * self.usd_per_device_hour / NS_PER_HOUR

    def draws(self, factors: Floats) -> Floats:
        """`usd` where the device time needed is each of these multiples of what it is taken to be."""
        beyond = np.maximum(0.0, float(self.needed_ns) * factors - self.idle_ns)
        if self.increment_ns is not None:
            beyond = np.ceil(beyond / float(self.increment_ns)) * float(self.increment_ns)
        return np.asarray(beyond * float(self.usd_per_device_hour / NS_PER_HOUR), dtype=np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """Dollars saved, below zero where borrowing cost more, with 95%, or why there is no interval."""

    usd: Fraction
    interval: Interval | None = None
    no_interval: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """Another way to come by the same useful tokens (`NOTHING`: to do without them)."""

    name: str
    #: Amortized: device time at its price, whether or not the fleet would have been billed for it.
    usd: Fraction | None
    basis: Basis
    explained: str
    why: str | None = None
    #: What it would have added to the bill; None where that is another way's figure, or not known.
    bought: Bought | None = None
    #: 95% of `usd`, and of what it would have added to the bill.
    interval: Interval | None = None
    added_interval: Interval | None = None
    no_interval: str | None = None
    #: `usd` less what the borrowed tokens cost in the same view.
    less: Saving | None = None
    #: What it would have added to the bill, less what borrowing did.
    cash: Saving | None = None
    #: The ends of the price book's range, as shares of `usd`.
    range: tuple[float, float] = (1.0, 1.0)

    @property
    def added_usd(self) -> Fraction | None:
        """What it would have added to the bill."""
        if self.name == NOTHING:
            return Fraction(0)
        return None if self.bought is None else self.bought.usd


def saved(
    ways: Sequence[Alternative],
    borrow: Marginal,
    groups: Groups,
    spreads: Mapping[str, Spread],
    *,
    borrowed_usd: Fraction,
    borrowed_loaded_usd: Fraction,
) -> list[Alternative]:
    """The ways with what borrowing saved against each, and its interval, or why there is none.

    `borrowed_usd` is the amortized cost of the borrowed tokens, `borrowed_loaded_usd` the fully loaded one.
    """
    drawn = resample(groups) if groups.rows else None

    def compared(way: Alternative) -> Alternative:
        if way.usd is None:
            return way
        usd, bought = float(way.usd), way.bought
        place = "loaded" if way.name == LOADED else "dedicated"
        unknown = _unknown(way, spreads, place)
        offered = Estimate(1.0, *way.range).draws(seed=4)

        def needed(resamples: Resamples) -> Floats:
            return _needed(way, resamples, groups, spreads.get(place))

        def elsewhere(resamples: Resamples) -> Floats:
            return np.asarray(usd * needed(resamples) * offered, dtype=np.float64)

        def here(resamples: Resamples) -> Floats:
            return np.asarray(float(borrowed_usd) * _made(resamples, groups, spreads), dtype=np.float64)

        def there(resamples: Resamples) -> Floats:
            if bought is None:
                return np.zeros(bootstrap.RESAMPLES)
            return np.asarray(bought.draws(needed(resamples)) * offered, dtype=np.float64)

        def bill(resamples: Resamples) -> Floats:
            charged = borrow.charged_estimate
            assert charged is not None
            spent = _made(resamples, groups, spreads) * charged.value + charged.draws(seed=3) - charged.value
            return np.asarray(there(resamples) + float(borrow.let_go_usd) - spent, dtype=np.float64)

        def saving(known: Fraction, draws: Callable[[Resamples], Floats], why: str | None) -> Saving:
            interval = None if why is not None or drawn is None else bootstrap.interval(draws(drawn), drawn.units)
            return Saving(
                usd=known, interval=interval, no_interval=None if interval is not None else why or bootstrap.TOO_FEW
            )

        whole, less, cash = saving(way.usd, elsewhere, unknown), None, None
        if way.name == LOADED:
            less = Saving(usd=way.usd - borrowed_loaded_usd, no_interval="a fully loaded borrow is not sampled")
        elif way.name != NOTHING:
            less = saving(way.usd - borrowed_usd, lambda resamples: elsewhere(resamples) - here(resamples), unknown)
        if way.added_usd is not None:
            cash = saving(way.added_usd + borrow.let_go_usd - borrow.charged_usd, bill, borrow.no_interval or unknown)
        return replace(
            way,
            interval=whole.interval,
            added_interval=saving(Fraction(0), there, unknown).interval,
            no_interval=whole.no_interval,
            less=less,
            cash=cash,
        )

    return [compared(way) for way in ways]


def _unknown(way: Alternative, spreads: Mapping[str, Spread], place: str) -> str | None:
    """Why nothing that rests on a way's throughput has an interval; None where it may have one."""
    if way.basis == "assumed":
        return "the throughput of other devices is assumed"
    needed = {"borrowed"} if way.name == NOTHING else {"borrowed", place}
    return None if needed <= spreads.keys() else UNKNOWN


def _needed(way: Alternative, drawn: Resamples, groups: Groups, spread: Spread | None) -> Floats:
    """Device time that a way may really take, as multiples: the useful borrowed tokens of a draw, at its waste."""
    if way.name == NOTHING or spread is None:
        return np.zeros(bootstrap.RESAMPLES)
    useful = _moved(drawn, groups, "borrowed_useful")
    with np.errstate(divide="ignore", invalid="ignore"):
        wasted = _moved(drawn, groups, "dedicated_tokens") / _moved(drawn, groups, "dedicated_useful")
    return np.asarray(useful * wasted * spread.draws(seed=2), dtype=np.float64)


def _made(drawn: Resamples, groups: Groups, spreads: Mapping[str, Spread]) -> Floats:
    """Borrowed device time as multiples: it follows the tokens made, and how evenly they were made."""
    return np.asarray(_moved(drawn, groups, "borrowed_tokens") * spreads["borrowed"].draws(seed=1), dtype=np.float64)


def _moved(drawn: Resamples, groups: Groups, name: str) -> Floats:
    """A sum of the draws as multiples of the groups' own."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(getattr(drawn, name) / float(sum(int(row[name]) for row in groups.rows)), dtype=np.float64)
