from __future__ import annotations

import dataclasses
from fractions import Fraction
from importlib import resources
from pathlib import Path

import pytest

from rose.pricing.borrowing import alternatives as counterfactual
from rose.pricing.borrowing.alternatives import Comparison
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.report import alternatives as compare
from rose.pricing.borrowing.savings import DEDICATED, Alternative, Saving
from rose.pricing.borrowing.scale_down import Span
from rose.pricing.run.priced import priced
from rose.pricing.stats.bootstrap import Interval
from tests.pricing.conftest import section

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
T0_NS = 1_780_272_000 * 10**9
S = 10**9


def test_it_is_said_whether_borrowing_paid_and_where_it_would_not(sample_kept: Path) -> None:
    answer = section(sample_kept, compare.comparison, "run")
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
    dedicated, *_ = answer.parts["says"].to_json()
    assert dedicated.startswith("Against dedicated devices: borrowing came out cheaper, and how sure that is")


@pytest.mark.long
def test_a_loss_is_called_one(sample_kept: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.toml"
    dear = EXAMPLE.replace('route = "inter-region"\nusd_per_gb = 0.02', 'route = "inter-region"\nusd_per_gb = 5')
    book.write_text(dear, encoding="utf-8")
    text = section(sample_kept, compare.comparison, "run", book).text("says")
    assert "Against dedicated devices: borrowing came out dearer, and how sure that is cannot be told" in text
    assert "borrowing does not pay as soon as" in text
    assert "tokens are wasted" not in text


@pytest.mark.long
def test_a_device_that_would_have_been_given_back_is_in_the_charge(sample_kept: Path) -> None:
    answer = section(sample_kept, compare.comparison, "run", gave_back=[Span("s0", T0_NS, T0_NS + 3600 * S)])
    # The whole hour at $2.35, energy and transfer on top.
    assert (answer.figure("bill", "borrowed", "added to the bill").value or 0) > 2_350_000_000
    assert "Against dedicated devices: borrowing came out dearer" in answer.text("says")


def way(low: float | None, high: float | None) -> Alternative:
    interval = None if low is None else Interval(low=low, high=high)
    return Alternative(
        name=DEDICATED,
        usd=Fraction(5),
        basis="measured",
        explained="",
        cash=Saving(usd=Fraction(3), interval=interval, no_interval=None if interval else "energy: a guess"),
    )


@pytest.fixture(scope="module")
def compared(sample_kept: Path) -> tuple[Comparison, Marginal]:
    with priced(sample_kept, "run") as run:
        made = counterfactual.compare(run.charged, run.allocation, run.borrow, run.groups, [], run.cost.spreads)
        return made, run.borrow


@pytest.mark.parametrize(
    ("low", "high", "judged"),
    [
        (1.0, 4.0, "borrowing was worth it"),
        (-1.0, 4.0, "borrowing was neither better nor worse as far as can be told"),
        (None, None, "borrowing came out cheaper, and how sure that is cannot be told (energy: a guess)"),
    ],
)
def test_a_judgement_rests_on_the_interval(
    low: float | None, high: float | None, judged: str, compared: tuple[Comparison, Marginal]
) -> None:
    comparison, borrow = compared
    one = dataclasses.replace(comparison, alternatives=(way(low, high),), flip=None, multiplier=None)
    (line,) = compare.says(one, borrow)
    assert line.startswith(f"Against dedicated devices: {judged}.")
