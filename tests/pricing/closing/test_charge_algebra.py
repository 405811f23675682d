from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.charges import pricing
from rose.pricing.charges.pricing import AMOUNTS, DIMENSIONS
from rose.pricing.closing import charge_algebra
from rose.pricing.money import PricingError
from tests.pricing.closing.conftest import charges_of, frames_of_charges


def sums(frame: pl.DataFrame, keys: Iterable[str]) -> dict[tuple[Any, ...], tuple[int, ...]]:
    by_key: dict[tuple[Any, ...], Counter[str]] = {}
    for row in frame.iter_rows(named=True):
        amounts_of_key = by_key.setdefault(tuple(row[key] for key in keys), Counter())
        for name in AMOUNTS:
            amounts_of_key[name] += row[name]
    return {
        key: amounts
        for key, amounts_of_key in by_key.items()
        if any(amounts := tuple(amounts_of_key[name] for name in AMOUNTS))
    }


@settings(deadline=None, max_examples=12)
@given(frames_of_charges(), frames_of_charges())
def test_before_and_difference_are_now_by_every_dimension(before: pl.DataFrame, now: pl.DataFrame) -> None:
    difference = charge_algebra.difference(now, before)
    assert sums(charge_algebra.add([difference, before]), DIMENSIONS) == sums(now, DIMENSIONS)
    for keys in (*combinations(DIMENSIONS, 1), ("team", "bucket", "hour"), ()):
        assert sums(pl.concat([before, difference]), keys) == sums(now, keys)
    assert all(any(row[name] for name in AMOUNTS) for row in difference.iter_rows(named=True))


@settings(deadline=None, max_examples=8)
@given(frames_of_charges(), st.randoms())
def test_what_is_the_same_has_no_difference_in_whatever_order(frame: pl.DataFrame, random: Any) -> None:
    order = list(range(frame.height))
    random.shuffle(order)
    assert charge_algebra.difference(frame[order], frame).is_empty()
    assert charge_algebra.add([frame[order]]).equals(charge_algebra.add([frame]))


@settings(deadline=None, max_examples=8)
@given(frames_of_charges(), st.lists(st.sampled_from([*charge_algebra.BY][:-1]), max_size=3, unique=True))
def test_a_drill_down_sums_to_its_parent_with_an_explicit_unallocated(frame: pl.DataFrame, by: list[str]) -> None:
    rows = charge_algebra.drill(frame, by)
    for name in ("cost_nano", "ns", "tokens"):
        assert sum(row[name] for row in rows) == pricing.total(frame, name)
    assert all(isinstance(row[column], str) for row in rows for column in by)
    assert [row["cost_nano"] for row in rows] == sorted((row["cost_nano"] for row in rows), reverse=True)
    # Each row is a drill-down's parent again.
    for row in rows if len(by) > 1 else []:
        parent = next(line for line in charge_algebra.drill(frame, by[:1]) if line[by[0]] == row[by[0]])
        children = [line for line in rows if line[by[0]] == row[by[0]]]
        assert sum(line["cost_nano"] for line in children) == parent["cost_nano"]


@pytest.mark.parametrize(("by", "says"), [(["teem"], "by 'teem'; give one of team"), (["work"], "by 'work'")])
def test_what_is_no_dimension_is_refused(by: list[str], says: str) -> None:
    with pytest.raises(PricingError, match=says):
        charge_algebra.drill(charges_of([{"cost_nano": 1}]), by)


def test_a_moved_row_is_taken_back_and_charged_anew() -> None:
    before = charges_of([{"team": "chat", "cost_nano": 5, "ns": 7, "writer": "old", "first_seq": 1}])
    now = charges_of([{"team": "research", "cost_nano": 6, "ns": 7, "writer": "new", "first_seq": 2}])
    rows = {row["team"]: row for row in charge_algebra.difference(now, before).iter_rows(named=True)}
    assert (rows["chat"]["cost_nano"], rows["chat"]["ns"], rows["chat"]["writer"]) == (-5, -7, "old")
    assert (rows["research"]["cost_nano"], rows["research"]["ns"], rows["research"]["writer"]) == (6, 7, "new")
