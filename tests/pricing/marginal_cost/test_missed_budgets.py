from datetime import date, timedelta
from fractions import Fraction
from typing import Any

import duckdb
import pytest

from rose.pricing.marginal_cost.harm import Harm
from rose.pricing.marginal_cost.missed_budgets import NO_PENALTY, confounded, confounded_by_day, realised
from tests.pricing import reference
from tests.pricing.marginal_cost.lending_books import penalty

DAY = date(2026, 6, 1)
WHY = "confounded: as a test has it"


def served(load_bin: int | None, lent: bool, requests: int, misses: int, **more: Any) -> dict[str, Any]:
    return {"day": DAY, "load_bin": load_bin, "lent": lent, "requests": requests, "violations": misses, **more}


def test_fewer_missed_budgets_while_lent_give_a_negative_provision() -> None:
    bins = [served(0, True, 100, 2), served(0, False, 100, 1), served(1, True, 50, 0), served(1, False, 25, 1)]
    figures = confounded([*bins, served(2, True, 10, 10), served(None, True, 3, 0)], penalty("2"), WHY)
    assert figures.usd == -2
    assert "150 lent requests compared, 13 had nothing to compare with" in figures.explained
    assert float(figures.usd) == pytest.approx(reference.realised_violations_usd([(100, 0.02, 0.01), (50, 0, 0.04)], 2))
    assert figures.explained.startswith("confounded")
    assert (figures.interval, figures.no_interval) == (None, WHY)


def test_days_sum_to_what_was_realised() -> None:
    next_day = DAY + timedelta(days=1)
    bins = [served(0, True, 10, 3), served(0, True, 7, 0, day=next_day)]
    bins += [served(0, False, 9, 1), served(0, False, 4, 2, day=next_day)]
    rate = Fraction(3, 13)
    days = {DAY: (3 - 10 * rate) * Fraction(7, 10), next_day: -7 * rate * Fraction(7, 10)}
    assert confounded_by_day(bins, penalty("0.7")) == days
    assert confounded(bins, penalty("0.7"), WHY).usd == sum(days.values())


def test_nothing_to_compare_with_is_not_enough_data_and_a_penalty_that_is_not_set_is_no_price() -> None:
    figures = confounded([served(0, True, 100, 2), served(1, False, 100, 1)], penalty("2"), WHY)
    assert "not enough data" in str(figures.missing)
    with duckdb.connect() as connection:
        free, _ = realised(Harm(confounded=WHY), connection, penalty("0"))
    assert (free.usd, free.basis, free.explained) == (0, "absent", NO_PENALTY)
    # No request at all came while lent: none can have been late for it.
    assert confounded([served(1, False, 100, 1)], penalty("2"), WHY).missing is None
