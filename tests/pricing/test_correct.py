from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rose.ledger import catalog
from rose.pricing import correct, formulas, pricebook, tokens
from rose.pricing.allocation import allocate
from rose.pricing.correct import Groups, TokenCost
from rose.pricing.marginal import marginal
from rose.pricing.tokens import Tokens

BOOK = pricebook.load("example")


@pytest.fixture
def found(sample: Path) -> tuple[Groups, TokenCost, dict[str, Tokens]]:
    with closing(catalog.connect(sample)) as connection:
        allocation = allocate(connection, "run", BOOK)
        made = tokens.count(connection, "run")
        cost = correct.token_cost(allocation, made, marginal(connection, "run", allocation, BOOK))
        return correct.groups(connection, "run"), cost, made


Found = tuple[Groups, TokenCost, dict[str, Tokens]]
#: What the sample's borrow added to the bill; tests/pricing/test_marginal.py has it by hand.
BORROW_USD = Fraction(413 * 1584) * Fraction(5, 4) / 36_000_000 + Fraction(4, 100)


def test_rates_of_the_sample(found: Found) -> None:
    groups, _, _ = found
    # Nine trajectories in three groups; g0 and g1 have an accepted one. Stale t2 is not judged, lost t3 neither.
    assert groups.rho == 2
    assert groups.alpha == Fraction(2, 3)
    assert groups.accept_rate == Fraction(3, 6)
    assert groups.ppv == Fraction(1, 2)
    # No rejection is charged twice: (1 + rho) / alpha is trajectories over solved groups.
    assert (1 + groups.rho) / groups.alpha == Fraction(9, 2)


def test_token_prices_of_the_sample(found: Found) -> None:
    _, cost, made = found
    assert cost.by_line == {
        "serving": Fraction(94, 100) / 1400,
        "dedicated": Fraction(141, 100) / 5600,
        "opportunistic": BORROW_USD / 1400,
        "blended": (Fraction(141, 100) + BORROW_USD) / 7000,
    }
    assert cost.borrowed_share == Fraction(1, 5)
    # The same as p / (tau * (1 - w)), and the blend as the formula of the third price line has it.
    borrowed = made["borrowed"]
    assert borrowed.wasted_share is not None
    c = formulas.useful_token_cost(2.35 / 3600, borrowed.generated / 1440, float(borrowed.wasted_share))
    assert float(cost.by_line["serving"] or 0) == pytest.approx(c)
    serving, dedicated, opportunistic = (float(cost.by_line[line] or 0) for line in correct.LINES[:3])
    pi = formulas.rollout_price_ratio(serving, dedicated, opportunistic, 0.2)
    assert float(cost.pi("blended") or 0) == pytest.approx(pi)


def test_cost_per_accepted_is_a_sum_over_a_sum(found: Found) -> None:
    groups, cost, _ = found
    measured = correct.measured(cost, groups)
    assert measured["blended"] == (Fraction(141, 100) + BORROW_USD) / 3
    assert measured["dedicated"] == Fraction(141, 100) / 5600 * 7000 / 3
    assert correct.measured(cost, replace(groups, accepted=0))["blended"] is None


def test_the_formula_at_each_line(found: Found) -> None:
    groups, cost, _ = found
    r = Fraction(4)
    assert correct.formula(BOOK, r, groups, Fraction(1)) == pytest.approx(2 * 4 * 3 / (2 / 3))
    pi = cost.pi("opportunistic")
    assert pi is not None
    assert correct.formula(BOOK, r, groups, pi) == pytest.approx(2 * 4 * (1 + float(pi) * 2) / (2 / 3))
    assert correct.formula(BOOK, None, groups, pi) is None
    assert correct.formula(BOOK, r, replace(groups, solved_groups=0), pi) is None
    assert correct.formula(BOOK, r, replace(groups, judged_groups=0), pi) is None
    partials = correct.partials(BOOK, r, groups)
    assert partials is not None
    assert partials.alpha == pytest.approx(-36 / (2 / 3))


def test_the_interval_is_seeded_and_holds_the_figure(found: Found) -> None:
    groups, cost, made = found
    many = replace(groups, each=[*groups.each] * 30)
    interval, over_ppv = correct.measured_interval(cost, made, many, correct.resample(many), "blended")
    assert interval is not None
    assert interval.high is not None
    figure = float(correct.measured(cost, groups)["blended"] or 0)
    # Thirty copies of the groups: a thirtieth of each dollar, over the accepted of one copy.
    assert interval.low < figure / 30 < interval.high
    assert over_ppv is not None
    assert over_ppv.low < 2 * figure / 30
    again = correct.measured_interval(cost, made, many, correct.resample(many), "blended")
    assert again == (interval, over_ppv)
    assert correct.resample(replace(groups, each=groups.each[:1])) is None
    assert correct.measured_interval(cost, made, groups, None, "blended") == (None, None)


def test_resamples_with_nothing_accepted_leave_the_top_open(found: Found) -> None:
    groups, cost, made = found
    interval, _ = correct.measured_interval(cost, made, groups, correct.resample(groups), "dedicated")
    assert interval is not None
    assert interval.high is None
    assert correct.interval(np.full(10, np.nan)) is None


def test_the_bootstrap_agrees_with_theory(found: Found) -> None:
    groups, cost, made = found
    accepted = np.random.default_rng(1).binomial(8, 0.5, size=400)
    each = [dict(groups.each[0]) | {"accepted": int(n), "borrowed_tokens": 0, "dedicated_tokens": 1} for n in accepted]
    many = replace(groups, each=each)
    interval, _ = correct.measured_interval(cost, made, many, correct.resample(many), "dedicated")
    assert interval is not None
    assert interval.high is not None
    # Every group costs the same, so the ratio spreads as one over the mean of the accepted does.
    dollars = float((cost.by_line["dedicated"] or 0) * made["dedicated"].useful)
    mean, error = accepted.mean(), accepted.std() / 20
    assert interval.low == pytest.approx(dollars / 400 / (mean + 1.96 * error), rel=0.01)
    assert interval.high == pytest.approx(dollars / 400 / (mean - 1.96 * error), rel=0.01)
