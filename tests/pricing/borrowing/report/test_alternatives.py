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
from rose.pricing.borrowing.report import tables
from rose.pricing.borrowing.savings import DEDICATED, NOTHING, Alternative, Saving
from rose.pricing.borrowing.scale_down import Span
from rose.pricing.run.priced import priced
from rose.pricing.stats.bootstrap import Interval
from tests.pricing.conftest import printed

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
T0_NS = 1_780_272_000 * 10**9
S = 10**9


def test_it_is_said_whether_borrowing_paid_and_where_it_would_not(sample_kept: Path) -> None:
    document = compare.build(sample_kept, "run")
    assert document.tokens.value == 1400
    charged, dedicated = document.charged.value, document.ways[DEDICATED]
    assert charged is not None
    assert dedicated.cost.value is not None
    assert dedicated.added.value == 164_500_000
    assert dedicated.cash_saved.value == 164_500_000 - charged
    assert document.borrowed_cost.value is not None
    assert dedicated.less.value == dedicated.cost.value - document.borrowed_cost.value
    assert (dedicated.cost.view, document.borrowed_cost.view, dedicated.less.view) == ("amortized",) * 3
    assert (dedicated.added.view, document.charged.view, dedicated.cash_saved.view) == ("marginal",) * 3
    flips = document.flips
    assert flips[compare.PER_MILLION].flips_at.value == 164_500_000 * 10**6 // 1400
    assert flips[compare.WASTED].now.value == 0.6
    assert flips[compare.PER_GB].now.text == "$0.0200"
    text = printed(tables.compare(document))
    # Three groups bound nothing, so neither does the answer.
    assert "Against dedicated devices: borrowing came out cheaper, and how sure that is cannot be told" in text
    assert "No interval: " in text
    assert "borrowing stops paying as soon as one of these holds" in text
    assert f"Against {NOTHING}: $" in text
    assert "It is cheaper only while that is below 0.250." in text
    assert "Amortized, a million useful tokens cost" in text


@pytest.mark.long
def test_a_loss_is_called_one(sample_kept: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.toml"
    dear = EXAMPLE.replace('route = "inter-region"\nusd_per_gb = 0.02', 'route = "inter-region"\nusd_per_gb = 5')
    book.write_text(dear, encoding="utf-8")
    text = " ".join(compare.build(sample_kept, "run", book).says)
    assert "Against dedicated devices: borrowing came out dearer, and how sure that is cannot be told" in text
    assert "borrowing does not pay as soon as" in text
    assert "tokens are wasted" not in text


@pytest.mark.long
def test_a_device_that_would_have_been_given_back_is_in_the_charge(sample_kept: Path) -> None:
    document = compare.build(sample_kept, "run", gave_back=[Span("s0", T0_NS, T0_NS + 3600 * S)])
    assert document.charged.value is not None
    # The whole hour at $2.35, energy and transfer on top.
    assert document.charged.value > 2_350_000_000
    assert "Against dedicated devices: borrowing came out dearer" in " ".join(document.says)


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
