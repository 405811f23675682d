from fractions import Fraction
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.marginal_cost.terms import Stretches, basis_of, nano_by_key
from rose.pricing.money import nano_usd_of
from rose.pricing.price_books.pricebook import load

BOOK = load("example")
amounts = st.dictionaries(st.integers(), st.fractions(-10, 10, max_denominator=10**12), max_size=8)


@given(amounts)
def test_rounded_parts_sum_to_the_rounded_sum_and_none_is_off_by_a_nano_dollar(parts: dict[int, Fraction]) -> None:
    nano = nano_by_key(parts)
    assert sum(nano.values()) == nano_usd_of(sum(parts.values(), Fraction(0)))
    assert all(abs(nano[key] - parts[key] * 10**9) < 1 for key in parts)


def test_the_largest_remainder_gets_what_is_over_and_the_first_wins_a_tie() -> None:
    third = Fraction(1, 3 * 10**9)
    assert nano_by_key({"a": third, "b": third, "c": third}) == {"a": 1, "b": 0, "c": 0}
    assert nano_by_key({"a": -third, "b": -2 * third}) == {"a": 0, "b": -1}
    assert nano_by_key({}) == {}


def test_a_sum_rests_on_its_weakest_ground() -> None:
    assert basis_of(["measured", "price book"]) == basis_of([]) == "measured"
    assert basis_of(["assumed", "assumed"]) == "assumed"
    assert basis_of(["measured", "assumed"]) == "partly measured"
    assert basis_of(["price book"]) == "price book"


@given(st.lists(st.integers(1, 100), min_size=1, max_size=4, unique=True), st.integers(0, 99), st.integers(1, 50))
def test_a_slice_is_divided_by_time_and_nothing_of_it_is_lost(edges: list[int], t0_ns: int, length: int) -> None:
    stretches = Stretches(BOOK, tuple(pairwise([-10, *sorted(edges), 200])))
    inside = any(t0_ns < change < t0_ns + length for change in stretches.changes_ns)
    row: dict[str, Any] = {"segment": stretches.number_at(t0_ns), "t0_ns": None, "t1_ns": None, "work": 7 * length}
    if inside:
        row |= {"t0_ns": t0_ns, "t1_ns": t0_ns + length}
    parts = list(stretches.divide(row, "work"))
    assert sum(times["work"] for _, times in parts) == 7 * length
    first, last = stretches.number_at(t0_ns), stretches.number_at(t0_ns + length - 1)
    assert [segment for segment, _ in parts] == list(range(first, last + 1))
    for segment, times in parts:
        from_ns, to_ns = stretches.spans[segment]
        assert times["work"] == 7 * (min(to_ns, t0_ns + length) - max(from_ns, t0_ns))


def test_an_instant_outside_every_stretch_has_the_prices_of_the_nearest() -> None:
    stretches = Stretches(BOOK, ((10, 20), (20, 30)))
    assert [stretches.number_at(at) for at in (0, 10, 19, 20, 99)] == [0, 0, 0, 1, 1]
    assert (stretches.changes_ns, stretches.prices(lambda at_ns: at_ns)) == ([20], [10, 20])
    assert Stretches(BOOK, ((10, 20),)).changes_ns == []
