"""What borrowing saved against each other way to the same tokens, and how well that is known [D].

Saved is what the other way would have cost less what the borrow is charged. Its 95% interval is a bootstrap over
groups (tokens and waste of a group belong together, dollars follow the tokens made), with m and the price of a token,
here and there, drawn from their own intervals at the same time, and an offer from the price book's range. There is none
where m has none, or where the other way's throughput is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from rose.pricing.answers.cost_per_correct import Groups, Resamples, resample
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.terms import Basis
from rose.pricing.run.token_spread import UNKNOWN, Spread
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats, Interval
from rose.pricing.stats.uncertainty import Estimate

DEDICATED, LOADED, NOTHING = "dedicated devices", "dedicated devices, fully loaded", "not sharing at all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """Another way to come by the same useful tokens (`NOTHING`: to do without them)."""

    name: str
    usd: Fraction | None
    basis: Basis
    explained: str
    #: The tokens that its dollars follow: useful ones at the waste of dedicated devices, or all that were borrowed.
    follows: Literal["dedicated", "borrowed"]
    why: str | None = None
    #: `usd` less what the borrow is charged; below zero where borrowing cost more.
    saved_usd: Fraction | None = None
    interval: Interval | None = None
    #: Why `saved_usd` has no interval.
    no_interval: str | None = None
    #: The ends of the price book's range, as shares of `usd`.
    range: tuple[float, float] = (1.0, 1.0)


def saved(
    ways: Sequence[Alternative], borrow: Marginal, found: Groups, spreads: Mapping[str, Spread]
) -> list[Alternative]:
    """The ways with what borrowing saved against each, and its interval, or why there is none."""
    drawn = resample(found) if found.each else None
    charged = borrow.charged_usd
    done = []
    for way in ways:
        if way.usd is None:
            done.append(way)
            continue
        place = "loaded" if way.name == LOADED else "dedicated"
        why, interval = _no_interval(way, borrow, spreads, place), None
        if why is None and drawn is not None:
            interval = bootstrap.interval(
                _way_draws(way, drawn, found, spreads.get(place)) - _charged_draws(borrow, drawn, found, spreads),
                drawn.units,
            )
        done.append(
            replace(
                way,
                saved_usd=way.usd - charged,
                interval=interval,
                no_interval=None if interval is not None else why or bootstrap.TOO_FEW,
            )
        )
    return done


def _no_interval(way: Alternative, borrow: Marginal, spreads: Mapping[str, Spread], place: str) -> str | None:
    if borrow.no_interval:
        return borrow.no_interval
    if way.basis == "assumed":
        return "the throughput of other devices is assumed"
    needed = {"borrowed"} if way.name == NOTHING else {"borrowed", place}
    return None if needed <= spreads.keys() else UNKNOWN


def _way_draws(way: Alternative, drawn: Resamples, found: Groups, spread: Spread | None) -> Floats:
    """What a way may really cost, dollars: the useful borrowed tokens of a draw, at its waste on the way's devices."""
    assert way.usd is not None
    if way.name == NOTHING or spread is None:
        return np.zeros(bootstrap.RESAMPLES)
    useful = _moved(drawn, found, "borrowed_useful")
    with np.errstate(divide="ignore", invalid="ignore"):
        wasted = _moved(drawn, found, "dedicated_tokens") / _moved(drawn, found, "dedicated_useful")
    offered = Estimate(1.0, *way.range).draws(seed=4)
    return np.asarray(float(way.usd) * useful * wasted * spread.draws(seed=2) * offered, dtype=np.float64)


def _charged_draws(borrow: Marginal, drawn: Resamples, found: Groups, spreads: Mapping[str, Spread]) -> Floats:
    """What the borrow may really be charged: it follows the tokens made, and how evenly they were made."""
    assert borrow.estimate is not None
    charged = borrow.estimate.plus(float(borrow.avoidable_usd))
    made = _moved(drawn, found, "borrowed_tokens") * spreads["borrowed"].draws(seed=1)
    return np.asarray(made * charged.value + charged.draws(seed=3) - charged.value, dtype=np.float64)


def _moved(drawn: Resamples, found: Groups, name: str) -> Floats:
    """A sum of the draws as multiples of the groups' own."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(getattr(drawn, name) / float(sum(int(row[name]) for row in found.each)), dtype=np.float64)
