from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from benchmarks.coverage import groups, lending
from rose.pricing.answers.cost_per_correct import Groups
from rose.pricing.borrowing import savings
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.savings import DEDICATED, NOTHING, Alternative
from rose.pricing.borrowing.terms import Term
from rose.pricing.run.token_spread import UNKNOWN, Spread
from rose.pricing.stats import bootstrap

STEADY = {"borrowed": Spread(0.05, 9), "dedicated": Spread(0.05, 9)}
NOT_LENT = Term(usd=Fraction(0), basis="price book", explained="")


@pytest.fixture(scope="module")
def found() -> Groups:
    import numpy as np

    return groups.simulate(np.random.default_rng(1)).groups


def borrow(term: Term) -> Marginal:
    return lending.marginal(term, NOT_LENT)


def energy(width: float = 0.0, **more: Any) -> Term:
    interval = bootstrap.Interval(low=1 - width, high=1 + width) if width else None
    return Term(usd=Fraction(1), basis="measured", explained="", interval=interval, **more)


def saved(term: Term, found: Groups, spreads: dict[str, Spread] | None = None, **changes: Any) -> Alternative:
    way = Alternative(name=DEDICATED, usd=Fraction(5), basis="measured", explained="", follows="dedicated")
    (done,) = savings.saved([replace(way, **changes)], borrow(term), found, STEADY if spreads is None else spreads)
    assert done.saved_usd == (done.usd or 0) - 1
    return done


def width(way: Alternative) -> float:
    assert way.interval is not None
    assert way.interval.high is not None
    return way.interval.high - way.interval.low


def test_the_marginal_price_s_own_interval_is_in_what_was_saved(found: Groups) -> None:
    exact, vague = saved(energy(), found), saved(energy(4.0), found)
    assert width(vague) > 6 > width(exact)


def test_without_an_interval_of_the_marginal_price_there_is_none_of_the_saving(found: Groups) -> None:
    done = saved(energy(no_interval="a guess"), found)
    assert (done.interval, done.no_interval) == (None, "energy: a guess")
    missing = saved(energy(missing="not enough data"), found)
    assert (missing.interval, missing.no_interval) == (None, "energy: it is not known")


def test_a_token_s_price_an_offer_s_range_and_an_assumption_count(found: Groups) -> None:
    assert width(saved(energy(), found, {**STEADY, "dedicated": Spread(0.5, 9)})) > 2 * width(saved(energy(), found))
    assert width(saved(energy(), found, range=(0.2, 2.0))) > 2 * width(saved(energy(), found))
    assumed = saved(energy(), found, basis="assumed")
    assert (assumed.interval, assumed.no_interval) == (None, "the throughput of other devices is assumed")
    assert saved(energy(), found, {"borrowed": STEADY["borrowed"]}).no_interval == UNKNOWN
    nothing = saved(energy(), found, {"borrowed": STEADY["borrowed"]}, name=NOTHING, usd=Fraction(0))
    assert nothing.no_interval is None


def test_a_few_groups_say_nothing(found: Groups) -> None:
    few = groups.grouped([dict(row) for row in found.each[: bootstrap.UNITS_MIN - 1]])
    assert saved(energy(), few).no_interval == bootstrap.TOO_FEW
