from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose import events
from rose.pricing.borrowing.alternatives import (
    DEDICATED,
    LOADED,
    NOTHING,
    Alternative,
    Comparison,
    compare,
    multiplier,
    spot_useful_share,
)
from rose.pricing.borrowing.made import made
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.query import rows
from rose.pricing.run.priced import priced
from rose.pricing.run.token_spread import UNKNOWN, Spread
from rose.pricing.stats import bootstrap

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
#: What an hour of the sample's devices costs.
PRICE = Fraction(235, 100)
#: What the 252 s cost that the tokens would have taken beyond idle time.
BEYOND = PRICE * 252 / 3600


STEADY = Spread(0.05, 9)


def compared(root: Path, folder: Path, *changes: tuple[str, str]) -> tuple[Comparison, Marginal]:
    text = EXAMPLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    book = folder / "book.toml"
    book.write_text(text, encoding="utf-8")
    with priced(root, "run", book) as run:
        tokens = {key: (part.generated, part.useful, part.stale) for key, part in made(run.charged).items()}
        turns, spreads = rows(run.connection, "borrowing/turn_lengths"), {"borrowed": STEADY, "dedicated": STEADY}
        comparison = compare(run.charged, run.allocation, run.borrow, run.groups, turns, spreads)
        counted = run.tokens["borrowed"]
        assert tokens["serving", "h100-sxm"] == (counted.generated, counted.useful, counted.by_fate["stale"])
        return comparison, run.borrow


def less(way: Alternative) -> Fraction:
    assert way.less is not None
    return way.less.usd


def cash(way: Alternative) -> Fraction:
    assert way.cash is not None
    return way.cash.usd


def test_the_sample_by_hand(sample: Path, tmp_path: Path) -> None:
    comparison, borrow = compared(
        sample,
        tmp_path,
        ("interruptions_per_hour = 0.05", "interruptions_per_hour = 720"),
        ('class = "h100-sxm"\ncommitment = "on demand"', 'class = "h100-sxm"\ncommitment = "by the hour"'),
    )
    assert (comparison.tokens, comparison.borrowed.generated, comparison.dedicated.useful) == (1400, 3500, 5600)
    assert comparison.charged_usd == borrow.usd
    ways = {way.name: way for way in comparison.alternatives}
    assert list(ways) == [
        DEDICATED,
        LOADED,
        "h100-sxm by the hour",
        "h100-sxm on demand, high end",
        "h100-sxm spot",
        NOTHING,
    ]
    # 2160 s of rollouts made 5600 useful tokens, so 1400 would have taken 540 s.
    assert ways[DEDICATED].usd == PRICE * 540 / 3600
    assert ways[DEDICATED].basis == "measured"
    # The borrowed 1440 s in the same view; of the 540 s, dedicated devices sat idle for 288 s, and the other 252 s
    # would have been bought.
    assert less(ways[DEDICATED]) == PRICE * (540 - 1440) / 3600
    assert (ways[DEDICATED].added_usd, cash(ways[DEDICATED])) == (BEYOND, BEYOND - borrow.usd)
    assert (ways[LOADED].added_usd, ways[LOADED].cash) == (None, None)
    assert cash(ways["h100-sxm by the hour"]) == Fraction(199, 100) * 252 / 3600 - borrow.usd
    # Of that device's hour, training took 1080 s and with its share of the idle time more.
    assert ways[LOADED].usd is not None
    assert PRICE * 540 / 3600 < ways[LOADED].usd < PRICE * 3600 / 3600 / 4
    assert ways["h100-sxm by the hour"].usd == Fraction(199, 100) * 540 / 3600
    # Every turn took 1 s, so a turn at a random instant is 0.5 s old, and 720 interruptions an hour lose a tenth.
    assert ways["h100-sxm spot"].usd == Fraction(540, 3600) / Fraction(9, 10)
    assert "720 interruptions an hour, each losing 0.5 s" in ways["h100-sxm spot"].explained
    assert (ways[NOTHING].usd, ways[NOTHING].less, cash(ways[NOTHING])) == (0, None, -borrow.usd)


def test_a_saving_of_three_groups_has_no_interval_and_says_so(sample: Path, tmp_path: Path) -> None:
    comparison, _ = compared(sample, tmp_path)
    for way in comparison.alternatives:
        assert way.interval is None
        # Nothing is known of how steadily all time of dedicated devices was used.
        assert way.no_interval == (UNKNOWN if way.name == LOADED else bootstrap.TOO_FEW)
        if way.name != LOADED:
            assert way.cash is not None
            assert (way.cash.interval, way.cash.no_interval) == (None, bootstrap.TOO_FEW)


def test_a_device_taken_back_faster_than_it_ends_its_turns_does_nothing(sample: Path, tmp_path: Path) -> None:
    comparison, _ = compared(sample, tmp_path, ("interruptions_per_hour = 0.05", "interruptions_per_hour = 7200"))
    (spot,) = (way for way in comparison.alternatives if way.name == "h100-sxm spot")
    assert (spot.usd, spot.cash, spot.interval) == (None, None, None)
    assert spot.why is not None
    assert "nothing would get done" in spot.why


def test_without_a_dedicated_device_the_book_s_price_is_assumed(
    write_ledger: Any, sample_made: Sequence[events.Event], tmp_path: Path
) -> None:
    root = write_ledger([event for event in sample_made if event.device_id != "r0"])
    own = (
        'pool = "rollout"\nusd_per_hour = 4\ncommitment = "own"\nvalid_from = 2026-01-01\n'
        'source = "test"\nsource_date = 2026-01-01\n'
    )
    comparison, _ = compared(root, tmp_path, ("[[power]]", f'[[device]]\nclass = "h100-sxm"\n{own}\n[[power]]'))
    ways = {way.name: way for way in comparison.alternatives}
    # The 1440 s that were borrowed, at the price of a rollout device.
    assert (ways[DEDICATED].usd, ways[DEDICATED].basis) == (Fraction(4 * 1440, 3600), "assumed")
    assert LOADED not in ways
    assert comparison.multiplier is None
    # 3500 tokens less 1000 stale ones in 1440 s: what a preemption lost would have been kept.
    seconds = Fraction(1440 * comparison.tokens, 2500)
    assert ways["h100-sxm on demand"].usd == Fraction(199, 100) * seconds / 3600
    assert ways["h100-sxm on demand"].basis == "assumed"


def test_where_it_flips_the_borrow_costs_the_same(sample: Path, tmp_path: Path) -> None:
    comparison, borrow = compared(sample, tmp_path)
    flip, way = comparison.flip, comparison.alternatives[0]
    assert flip is not None
    assert way.added_usd == BEYOND
    hours = Fraction(1440, 3600)
    assert flip.usd_per_device_hour * hours == way.added_usd == flip.usd_per_million_useful * 1400 / 10**6
    assert flip.wasted_share is not None
    assert comparison.charged_usd / (3500 * (1 - flip.wasted_share)) == way.added_usd / 1400
    assert flip.usd_per_gb is not None
    assert comparison.charged_usd - borrow.terms["transfer"].usd + 2 * flip.usd_per_gb == way.added_usd
    assert flip.provision_usd_per_device_hour * hours == BEYOND - borrow.usd


def test_a_dear_route_turns_the_borrow_into_a_loss(sample: Path, tmp_path: Path) -> None:
    comparison, _ = compared(
        sample, tmp_path, ('route = "inter-region"\nusd_per_gb = 0.02', 'route = "inter-region"\nusd_per_gb = 5')
    )
    dedicated = comparison.alternatives[0]
    assert cash(dedicated) < -9
    assert comparison.flip is not None
    # No share of waste by itself would have made up for it, and a cheaper route would have.
    assert comparison.flip.wasted_share is None
    assert comparison.flip.usd_per_gb is not None
    assert 0 < comparison.flip.usd_per_gb < 5
    assert comparison.multiplier is not None
    assert not comparison.multiplier.cheaper


@pytest.mark.parametrize(
    ("gain", "ratio", "m"), [("1.20", 0, 0.833), ("3.31", 0, 0.302), ("1.20", 1, 1.667), ("3.31", 1, 0.604)]
)
def test_throughput_to_cost(gain: str, ratio: int, m: float) -> None:
    x = Fraction(gain)
    factor = multiplier(int((x - 1) * 100), 100, Fraction(7 * ratio), Fraction(7))
    assert factor is not None
    assert factor.throughput_gain == x
    assert factor.m == pytest.approx(m, abs=5e-4)
    assert factor.cheaper == (factor.m < 1)


def test_a_bill_that_fell_and_a_run_without_both_have_no_multiplier() -> None:
    assert multiplier(10, 10, Fraction(-1), Fraction(1)) is None
    assert multiplier(0, 10, Fraction(1), Fraction(1)) is None
    assert multiplier(10, 0, Fraction(1), Fraction(0)) is None


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(0, 100))
@settings(deadline=None)
def test_what_a_spot_device_loses_is_the_age_of_the_turn_it_was_at(lengths: list[int], per_hour: int) -> None:
    """Turns one after another: over all instants, the mean age of the turn under way is E[L^2] / (2 E[L])."""
    ages = sum(Fraction(length**2, 2) for length in lengths) / sum(lengths)
    by_formula = Fraction(sum(length**2 for length in lengths), 2 * sum(lengths))
    assert ages == by_formula
    assert spot_useful_share(Fraction(per_hour), by_formula) == 1 - per_hour * ages / 3600
