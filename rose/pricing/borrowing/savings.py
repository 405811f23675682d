"""What borrowing saved against each other way to the same tokens, and how well that is known [D].

Two figures for each way, each of one view alone: *less* is the amortized cost of the way less that of the borrowed
tokens, *cash saved* what the way would have added to the bill less what borrowing added (`cash`). Their 95% intervals
are a bootstrap over groups (tokens and waste of a group belong together, dollars follow the tokens made), with m and
the price of a token, here and there, drawn from their own intervals at the same time, and an offer from the price
book's range. There is none where m has none, or where the other way's throughput is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from rose.pricing.answers.cost_per_correct import Groups, Resamples, resample
from rose.pricing.borrowing.cash import Bought
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.terms import Basis
from rose.pricing.run.token_spread import UNKNOWN, Spread
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats, Interval
from rose.pricing.stats.uncertainty import Estimate

DEDICATED, LOADED, NOTHING = "dedicated devices", "dedicated devices, fully loaded", "not sharing at all"


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
    return [_saved(way, borrow, groups, spreads, drawn, borrowed_usd, borrowed_loaded_usd) for way in ways]


def _saved(
    way: Alternative,
    borrow: Marginal,
    groups: Groups,
    spreads: Mapping[str, Spread],
    drawn: Resamples | None,
    borrowed_usd: Fraction,
    borrowed_loaded_usd: Fraction,
) -> Alternative:
    if way.usd is None:
        return way
    place = "loaded" if way.name == LOADED else "dedicated"
    unknown = _unknown(way, spreads, place)

    def known(draws: Callable[[Resamples], Floats], why: str | None) -> tuple[Interval | None, str | None]:
        interval = None if why is not None or drawn is None else bootstrap.interval(draws(drawn), drawn.units)
        return interval, None if interval is not None else why or bootstrap.TOO_FEW

    def elsewhere(resamples: Resamples) -> Floats:
        return _way_draws(way, resamples, groups, spreads.get(place))

    def here(resamples: Resamples) -> Floats:
        return np.asarray(float(borrowed_usd) * _made(resamples, groups, spreads), dtype=np.float64)

    def there(resamples: Resamples) -> Floats:
        return _added_draws(way, resamples, groups, spreads.get(place))

    def bill(resamples: Resamples) -> Floats:
        added = there(resamples) + float(borrow.let_go_usd)
        return np.asarray(added - _charged_draws(borrow, resamples, groups, spreads), dtype=np.float64)

    interval, why = known(elsewhere, unknown)
    less = cash = None
    if way.name == LOADED:
        less = Saving(usd=way.usd - borrowed_loaded_usd, no_interval="a fully loaded borrow is not sampled")
    elif way.name != NOTHING:
        less = _saving(
            way.usd - borrowed_usd, *known(lambda resamples: elsewhere(resamples) - here(resamples), unknown)
        )
    if way.added_usd is not None:
        cash = _saving(
            way.added_usd + borrow.let_go_usd - borrow.charged_usd, *known(bill, borrow.no_interval or unknown)
        )
    added_interval, _ = known(there, unknown)
    return replace(way, interval=interval, added_interval=added_interval, no_interval=why, less=less, cash=cash)


def _saving(usd: Fraction, interval: Interval | None, no_interval: str | None) -> Saving:
    return Saving(usd=usd, interval=interval, no_interval=no_interval)


def _unknown(way: Alternative, spreads: Mapping[str, Spread], place: str) -> str | None:
    if way.basis == "assumed":
        return "the throughput of other devices is assumed"
    needed = {"borrowed"} if way.name == NOTHING else {"borrowed", place}
    return None if needed <= spreads.keys() else UNKNOWN


def _way_draws(way: Alternative, drawn: Resamples, groups: Groups, spread: Spread | None) -> Floats:
    """What a way may really cost, dollars, amortized."""
    assert way.usd is not None
    return np.asarray(float(way.usd) * _needed(way, drawn, groups, spread) * _offered(way), dtype=np.float64)


def _added_draws(way: Alternative, drawn: Resamples, groups: Groups, spread: Spread | None) -> Floats:
    """What a way may really have added to the bill, dollars."""
    if way.bought is None:
        return np.zeros(bootstrap.RESAMPLES)
    return np.asarray(way.bought.draws(_needed(way, drawn, groups, spread)) * _offered(way), dtype=np.float64)


def _offered(way: Alternative) -> Floats:
    return Estimate(1.0, *way.range).draws(seed=4)


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


def _charged_draws(borrow: Marginal, drawn: Resamples, groups: Groups, spreads: Mapping[str, Spread]) -> Floats:
    """What the borrow may really be charged."""
    charged = borrow.charged_estimate
    assert charged is not None
    made = _made(drawn, groups, spreads)
    return np.asarray(made * charged.value + charged.draws(seed=3) - charged.value, dtype=np.float64)


def _moved(drawn: Resamples, groups: Groups, name: str) -> Floats:
    """A sum of the draws as multiples of the groups' own."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(getattr(drawn, name) / float(sum(int(row[name]) for row in groups.rows)), dtype=np.float64)
