from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from rose.pricing.borrowing import alternatives as counterfactual
from rose.pricing.borrowing.report import alternatives as compare
from rose.pricing.borrowing.savings import DEDICATED, Alternative, Saving
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats.bootstrap import Interval


def test_it_is_said_whether_borrowing_paid_and_where_it_would_not(priced_sample: PricedRun) -> None:
    answer = compare.comparison(priced_sample)
    assert answer.figure("savings", "useful tokens borrowed").value == 1400
    bill, time = answer.table("bill").row(DEDICATED), answer.table("device_time").row(DEDICATED)
    charged, borrowed = (answer.table(name).row("borrowed") for name in ("bill", "device_time"))
    assert bill["added to the bill"].value == 164_500_000
    assert bill["cash saved"].value == 164_500_000 - charged["added to the bill"].value
    assert time["less by borrowing"].value == time["cost"].value - borrowed["cost"].value
    assert {time["cost"].view, borrowed["cost"].view, time["less by borrowing"].view} == {"amortized"}
    assert {bill["added to the bill"].view, charged["added to the bill"].view, bill["cash saved"].view} == {"marginal"}
    assert answer.figure("flips", compare.PER_MILLION, "stops paying at").value == 164_500_000 * 10**6 // 1400
    assert answer.figure("flips", compare.WASTED, "now").value == 0.6
    assert answer.figure("flips", compare.PER_GB, "now").text == "$0.0200"
    gain, ratio, m = (row["value"].value for row in answer.table("multiplier").records())
    assert m == pytest.approx((1 + ratio) / gain)
    assert gain == pytest.approx(1.25)
    # Three groups bound nothing, so neither does the answer.
    assert bill["cash saved"].no_interval
    assert answer.text("says").startswith("Borrowing came out cheaper, and how sure that is cannot be told")


def way(low: float | None, high: float | None) -> Alternative:
    interval = None if low is None else Interval(low=low, high=high)
    return Alternative(
        name=DEDICATED,
        usd=Fraction(5),
        basis="measured",
        explained="",
        cash=Saving(usd=Fraction(3), interval=interval, no_interval=None if interval else "energy: a guess"),
    )


@pytest.mark.parametrize(
    ("low", "high", "judged"),
    [
        (1.0, 4.0, "Borrowing was worth it"),
        (-1.0, 4.0, "Borrowing was neither better nor worse as far as can be told"),
        (None, None, "Borrowing came out cheaper, and how sure that is cannot be told (energy: a guess)"),
    ],
)
def test_a_judgement_rests_on_the_interval(
    low: float | None, high: float | None, judged: str, priced_sample: PricedRun
) -> None:
    run = priced_sample
    comparison = counterfactual.compare(run.charged, run.allocation, run.borrow, run.groups, [], run.cost.spreads)
    one = dataclasses.replace(comparison, alternatives=(way(low, high),), flip=None, multiplier=None)
    assert compare.in_short(one, run.borrow).startswith(judged)
