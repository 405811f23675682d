from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rose.pricing.borrowing import sensitivity
from rose.pricing.borrowing.cash import Bought
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.report import alternatives, marginal, provision, risk, spikes
from rose.pricing.borrowing.savings import Alternative, Saving
from rose.pricing.borrowing.sensitivity import ANYWAY, OTHERWISE, Swing
from rose.pricing.borrowing.terms import absent, term
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.stats.bootstrap import Interval
from tests.pricing.borrowing.test_harm import ASKED, BUDGET_MS, run


@pytest.mark.long
def test_it_is_made_of_the_same_documents_as_are_asked_for_alone(sample_kept: Path) -> None:
    document = risk.build(sample_kept)
    assert document.compare == alternatives.build(sample_kept)
    assert document.price == marginal.build(sample_kept)
    assert document.provision == provision.build(sample_kept)
    assert document.spikes == spikes.build(sample_kept)
    assert document.cash_saved.value == document.compare.savings.cash_saved.value


@pytest.mark.long
def test_late_requests_are_compared_with_windows_in_which_leases_were_withheld(write_ledger: Any) -> None:
    row = risk.build(write_ledger(run())).harm
    lent, withheld = ([one["ttft_ms"] > BUDGET_MS for one in ASKED if one["clean"] is clean] for clean in (False, True))
    assert row.requests.value == len(lent)
    assert row.late.value == pytest.approx(sum(lent) / len(lent))
    assert row.late_without.value == pytest.approx(sum(withheld) / len(withheld))
    assert row.added.value == round(sum(lent) - len(lent) * sum(withheld) / len(withheld), 1)
    assert row.told is True
    assert row.added.low is not None
    assert 0 < row.added.low < (row.added.value or 0) < (row.added.high or 0)
    assert row.says.startswith("Lending makes serving late: ")


@pytest.mark.long
def test_without_withheld_windows_nothing_is_told(write_ledger: Any) -> None:
    row = risk.build(write_ledger(run(windows=[]))).harm
    assert row.told is None
    assert row.says == (
        "Whether lending harms serving is not known: leases were never withheld at random, so what lending does cannot "
        "be told from what load does."
    )
    assert {figure.value for figure in (row.requests, row.late, row.late_without, row.added)} == {None}


def way(**changes: Any) -> Alternative:
    fields: dict[str, Any] = {
        "name": "dedicated devices",
        "usd": Fraction(20),
        "basis": "measured",
        "explained": "",
        "cash": Saving(usd=Fraction(10)),
        "bought": None,
    }
    return Alternative(**{**fields, **changes})


def borrow(**changes: Any) -> Marginal:
    terms = {
        "energy": term({None: Fraction(2)}, "measured", "", interval=Interval(low=1, high=4)),
        "transfer": term({None: Fraction(1)}, "measured", ""),
        "interference": absent("no price"),
    }
    return Marginal(terms=terms, borrowed_ns=1, idle_anyway=Fraction(1), **changes)


def test_each_thing_moves_cash_saved_by_its_own_range_and_the_furthest_comes_first() -> None:
    bought = Bought(
        needed_ns=Fraction(13 * NS_PER_HOUR), idle_ns=0, increment_hours=None, usd_per_device_hour=Fraction(1)
    )
    assert bought.usd == 13
    dedicated = way(bought=bought, added_interval=Interval(low=12, high=15))
    assert sensitivity.swings(dedicated, borrow()) == (
        Swing(name="energy", worse_usd=Fraction(8), better_usd=Fraction(11)),
        Swing(name=OTHERWISE, worse_usd=Fraction(9), better_usd=Fraction(12)),
    )
    hangs = borrow(unstated_usd=Fraction(30))
    assert sensitivity.swings(dedicated, hangs)[0] == Swing(
        name=ANYWAY, worse_usd=Fraction(-20), better_usd=Fraction(10)
    )
    ranged = borrow(avoidable_usd=Fraction(3), avoidable_interval=Interval(low=0, high=9))
    assert sensitivity.swings(dedicated, ranged)[0] == Swing(
        name=ANYWAY, worse_usd=Fraction(4), better_usd=Fraction(13)
    )
    assert sensitivity.swings(way(cash=None), borrow()) == ()
