from __future__ import annotations

from fractions import Fraction

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.money import rounded
from rose.pricing.watch.effects import BY, Amount, Cell, Change, cells, effects, largest
from tests.pricing.closing.conftest import charges_of

A = Cell("research", "h100-sxm", "rollout", "capacity")
B = Cell("chat", "h100-sxm", "serving", "capacity")


def change(before: dict[Cell, Amount], now: dict[Cell, Amount]) -> Change:
    total = sum(amount.cost_nano for amount in now.values()) - sum(amount.cost_nano for amount in before.values())
    return Change(total, rounded(effects(before, now), total))


def test_more_of_the_same_is_usage() -> None:
    made = change({A: Amount(10, 100), B: Amount(30, 300)}, {A: Amount(20, 200), B: Amount(60, 600)})
    assert (made.total, made.effects) == (400, {"usage": 400, "mix": 0, "price": 0})


def test_a_new_rate_is_price() -> None:
    made = change({A: Amount(10, 100)}, {A: Amount(10, 130)})
    assert made.effects == {"usage": 0, "mix": 0, "price": 30}


def test_what_moves_to_a_dearer_cell_is_mix() -> None:
    # A costs 10 a unit, B 1: 5 units move from B to A.
    made = change({A: Amount(10, 100), B: Amount(10, 10)}, {A: Amount(15, 150), B: Amount(5, 5)})
    assert (made.total, made.effects) == (45, {"usage": 0, "mix": 45, "price": 0})
    assert made.by("team") == {
        "research": {"usage": 0, "mix": 50, "price": 0}, "chat": {"usage": 0, "mix": -5, "price": 0},
    }  # fmt: skip


def test_a_cell_that_is_new_is_mix_and_a_kind_that_is_new_is_usage() -> None:
    energy = Cell("chat", "h100-sxm", "energy", "energy")
    made = change({A: Amount(10, 100)}, {A: Amount(10, 100), energy: Amount(7, 70)})
    assert made.effects == {"usage": 70, "mix": 0, "price": 0}
    made = change({A: Amount(10, 100)}, {A: Amount(5, 50), B: Amount(5, 80)})
    assert made.effects == {"usage": 0, "mix": 30, "price": 0}
    made = change({A: Amount(10, 100)}, {})
    assert made.effects == {"usage": -100, "mix": 0, "price": 0}


CELLS = st.builds(
    Cell,
    st.sampled_from(["chat", "research"]),
    st.sampled_from(["h100", "h200"]),
    st.sampled_from(["rollout", "idle"]),
    st.sampled_from(["capacity", "energy"]),
)
AMOUNTS = st.builds(Amount, st.integers(0, 10**15), st.integers(0, 10**12))


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(CELLS, AMOUNTS), st.dictionaries(CELLS, AMOUNTS))
def test_the_effects_sum_to_the_change_by_every_dimension(before: dict[Cell, Amount], now: dict[Cell, Amount]) -> None:
    total = sum(amount.cost_nano for amount in now.values()) - sum(amount.cost_nano for amount in before.values())
    exact = effects(before, now)
    assert sum(exact.values()) == total
    made = change(before, now)
    assert sum(made.effects.values()) == total
    for name in BY:
        assert sum(sum(row.values()) for row in made.by(name).values()) == total
    assert all(abs(made.parts[key] - exact[key]) < 1 for key in exact)


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.integers(0, 20), st.fractions(-100, 100, max_denominator=97), min_size=1), st.integers(-1, 1))
def test_rounding_keeps_the_total_it_is_given(parts: dict[int, Fraction], off: int) -> None:
    total = round(sum(parts.values())) + off
    assert sum(rounded(parts, total).values()) == total


def test_cells_sum_the_volume_that_their_kind_has() -> None:
    frame = charges_of(
        [
            {"ns": 5, "cost_nano": 1}, {"ns": 7, "cost_nano": 2, "device_id": "s1"},
            {"kind": "transfer", "bucket": "transfer", "bytes": 9, "cost_nano": 3},
            {"kind": "energy", "bucket": "energy", "energy_mw_ns": 11, "cost_nano": 4},
        ]
    )  # fmt: skip
    assert {(cell.bucket, cell.kind): (amount.volume, amount.cost_nano) for cell, amount in cells(frame).items()} == {
        ("serving", "capacity"): (12, 3), ("transfer", "transfer"): (9, 3), ("energy", "energy"): (11, 4),
    }  # fmt: skip
    assert cells(pl.DataFrame(schema=frame.schema)) == {}


def test_the_largest_goes_by_its_direction() -> None:
    amounts = [("a", -9), ("b", 3), ("c", 3)]
    assert largest(amounts, 1) == ("b", 3)
    assert largest(amounts, -1) == ("a", -9)
