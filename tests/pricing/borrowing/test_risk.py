from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rose.ledger.ledger import Ledger
from rose.pricing.borrowing import risk
from rose.pricing.borrowing.comparison import CASH
from rose.pricing.borrowing.risk import ANYWAY, OTHERWISE
from rose.pricing.borrowing.savings import Alternative, Bought, Saving
from rose.pricing.marginal_cost import harm
from rose.pricing.marginal_cost.harm import Harm
from rose.pricing.marginal_cost.marginal import Marginal
from rose.pricing.marginal_cost.terms import Term, absent
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.holdout import Side, Stratum
from rose.pricing.stats.uncertainty import Clusters
from rose.pricing.table import Section
from tests.pricing.marginal_cost.test_harm import ASKED, BUDGET_MS


def test_every_question_has_an_answer_and_one_cash_saved(priced_sample: PricedRun) -> None:
    answers = risk.sections(priced_sample)
    assert tuple(answers) == tuple(risk.QUESTIONS)
    assert risk.sections(priced_sample, "price") == {"price": answers["price"]}
    cash = answers["compare"].figure("savings", CASH)
    assert cash == answers["compare"].figure("bill", "dedicated devices", CASH)
    for row in answers["risk"].table("depends").records():
        assert row["as it is"].value == cash.value


def late(run: PricedRun) -> tuple[Section, dict[str, Any]]:
    answer = risk.risk(run)
    return answer, {row["what"]: row["value"] for row in answer.table("harm").records()}


def test_late_requests_are_compared_with_windows_in_which_leases_were_withheld(
    held_out: Path, held_out_run: PricedRun
) -> None:
    answer, harm = late(held_out_run)
    lent, withheld = ([one["ttft_ms"] > BUDGET_MS for one in ASKED if one["clean"] is clean] for clean in (False, True))
    assert harm[risk.REQUESTS].value == len(lent)
    assert harm[risk.LATE].value == pytest.approx(sum(lent) / len(lent))
    assert harm[risk.LATE_WITHOUT].value == pytest.approx(sum(withheld) / len(withheld))
    added = harm[risk.HARMED]
    assert added.value == pytest.approx(sum(lent) - len(lent) * sum(withheld) / len(withheld))
    assert 0 < added.low < added.value < added.high
    assert answer.paragraph("says").text.startswith("Lending delays serving: ")
    assert risk.harmful(risk.without_prices(Ledger(held_out), "run")) is True


def test_without_withheld_windows_nothing_is_told(never_withheld: Path, never_withheld_run: PricedRun) -> None:
    answer, harm = late(never_withheld_run)
    assert risk.harmful(risk.without_prices(Ledger(never_withheld), "run")) is None
    assert "leases were never withheld at random" in answer.paragraph("says").text
    assert {harm[name].value for name in (risk.REQUESTS, risk.LATE, risk.LATE_WITHOUT, risk.HARMED)} == {None}


def side(misses: list[int], requests: int = 50) -> Side:
    clusters = Clusters.of([(float(count), float(requests)) for count in misses])
    return Side(x=float(requests * len(misses)), y=float(sum(misses)), squares=float(sum(misses)), clusters=clusters)


@pytest.mark.parametrize("windows", [8, 16, 32])
def test_harm_that_cannot_be_told_says_how_many_more_windows_would_tell(windows: int) -> None:
    lent = side([2, 3, 1, 4] * 50)
    measured = Harm(strata={"misses": {"": Stratum(lent, side([2, 3, 1, 3] * (windows // 4)))}})
    more = harm.more_windows(measured)
    assert risk.harmful(measured) is None
    assert more is not None
    assert f"; {more:,} more withheld windows would tell it from chance." in risk.says(measured)
    # As many in all, give or take, however many there are already.
    assert 150 < more + windows < 450
    told = Harm(strata={"misses": {"": Stratum(side([9, 10, 8, 9] * 50), side([0, 1] * windows))}})
    assert (harm.more_windows(told), risk.harmful(told)) == (0, True)
    assert "would tell" not in risk.says(told)


def way(cash: Saving | None, **changes: Any) -> Alternative:
    return Alternative(name="dedicated devices", usd=Fraction(20), basis="measured", explained="", cash=cash, **changes)


def borrow(**changes: Any) -> Marginal:
    terms = {
        "energy": Term(usd=Fraction(2), basis="measured", explained="", interval=Interval(low=1, high=4)),
        "transfer": Term(usd=Fraction(1), basis="measured", explained=""),
        "interference": absent("no price"),
    }
    return Marginal(terms=terms, borrowed_ns=1, idle_anyway=Fraction(1), **changes)


def test_each_thing_moves_cash_saved_by_its_own_range_and_the_furthest_comes_first() -> None:
    bought = Bought(hours={0: (Fraction(13 * NS_PER_HOUR), Fraction(0))}, usd_per_device_hour=Fraction(1))
    assert bought.usd == 13
    dedicated = way(Saving(usd=Fraction(10)), bought=bought, added_interval=Interval(low=12, high=15))
    assert risk.swings(dedicated, borrow()) == (
        ("energy", Fraction(8), Fraction(11)),
        (OTHERWISE, Fraction(9), Fraction(12)),
    )
    assert risk.swings(dedicated, borrow(unstated_usd=Fraction(30)))[0] == (ANYWAY, Fraction(-20), Fraction(10))
    ranged = borrow(avoidable_usd=Fraction(3), avoidable_interval=Interval(low=0, high=9))
    assert risk.swings(dedicated, ranged)[0] == (ANYWAY, Fraction(4), Fraction(13))
    assert risk.swings(way(None), borrow()) == ()
