from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from rose.pricing.answers.cost_per_correct import LINES, TokenCost
from rose.pricing.run.token_spread import UNKNOWN, Spread
from rose.pricing.stats.uncertainty import Estimate

KNOWN = Spread(0, 1)


def cost(borrow: Estimate | None, spreads: dict[str, Spread], share: Fraction = Fraction(1, 2)) -> TokenCost:
    return TokenCost(
        by_line=dict(zip(LINES, map(Fraction, (2, 3, 1, 2)), strict=True)),
        paid={},
        borrowed_share=share,
        useful=20,
        borrow=borrow,
        no_borrow_interval=None if borrow else "a guess",
        spreads=spreads,
    )


def test_prices_that_are_known_exactly_do_not_move() -> None:
    known = cost(Estimate(10.0, 10.0, 10.0), {"borrowed": KNOWN, "dedicated": KNOWN})
    for line, borrowed, dedicated in (
        ("serving", 2, 2),
        ("dedicated", 3, 3),
        ("opportunistic", 1, 1),
        ("blended", 1, 3),
    ):
        drawn = known.price_draws(line)
        assert known.no_interval(line) is None
        assert (drawn["borrowed"] == borrowed).all()
        assert (drawn["dedicated"] == dedicated).all()


def test_the_borrow_s_own_interval_moves_the_price_of_its_tokens() -> None:
    drawn = cost(Estimate(10.0, 5.0, 20.0), {"borrowed": KNOWN, "dedicated": KNOWN}).price_draws("blended")
    # Half of the 20 useful tokens are borrowed.
    assert np.quantile(drawn["borrowed"], [0.025, 0.5, 0.975]) == pytest.approx([0.5, 1, 2], abs=0.1)
    assert (drawn["dedicated"] == 3).all()


def test_what_is_not_known_leaves_its_lines_without_an_interval() -> None:
    guess = cost(None, {"borrowed": KNOWN, "dedicated": KNOWN})
    assert [guess.no_interval(line) for line in ("serving", "dedicated", "opportunistic", "blended")] == [
        None,
        None,
        "a guess",
        "a guess",
    ]
    # Where nothing was borrowed, the blend rests on dedicated tokens alone.
    assert cost(None, {"dedicated": KNOWN}, Fraction(0)).no_interval("blended") is None
    assert cost(None, {}, Fraction(0)).no_interval("blended") == UNKNOWN
