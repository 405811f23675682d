from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.money import charge_nano_usd, format_ns, format_usd, nano_usd_of, split

weights = st.dictionaries(st.text(max_size=3), st.integers(0, 10**20), min_size=1, max_size=9)


@given(st.integers(-(10**24), 10**24), weights)
def test_a_split_sums_to_its_total_and_is_off_by_less_than_one(total: int, by: dict[str, int]) -> None:
    parts = split(total, by)
    assert sum(parts.values()) == total
    assert list(parts) == list(by)
    whole = sum(by.values())
    for key, part in parts.items():
        exact = Fraction(total * by[key], whole) if whole else Fraction(total, len(by))
        assert abs(part - exact) < 1


@given(st.integers(0, 10**18), weights)
def test_a_zero_weight_gets_nothing_unless_all_are_zero(total: int, by: dict[str, int]) -> None:
    if any(by.values()):
        assert all(part == 0 for key, part in split(total, by).items() if by[key] == 0)


def test_ties_go_to_the_first_key() -> None:
    assert split(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}
    assert split(5, {"a": 0, "b": 0}) == {"a": 3, "b": 2}


def test_a_split_among_nothing_or_by_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="no keys"):
        split(1, {})
    with pytest.raises(ValueError, match="negative"):
        split(1, {"a": 2, "b": -1})


def test_a_charge_is_exact_over_an_hour_and_rounded_half_to_even() -> None:
    assert charge_nano_usd(Decimal("2.35"), 3_600_000_000_000) == 2_350_000_000
    assert charge_nano_usd(Decimal("0.0000000005"), 3_600_000_000_000) == 0
    assert charge_nano_usd(Decimal("0.0000000015"), 3_600_000_000_000) == 2
    # A century of ten thousand H100s, where a float has no nano-dollars left.
    assert charge_nano_usd(Decimal("23500.000000001"), 876_000 * 3_600_000_000_000) == 20_586_000_000_000_876_000


def test_dollars_to_nano_dollars() -> None:
    assert nano_usd_of(Decimal("1.0000000005")) == 1_000_000_000
    assert nano_usd_of(Fraction(1, 3)) == 333_333_333


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (1_234_000, "$0.00123"),
        (56_300_000, "$0.0563"),
        (1_000_000_000, "$1.00"),
        (-1_234_567_890_123, "-$1,234.57"),
    ],
)
def test_dollars_for_people(amount: int, text: str) -> None:
    assert format_usd(amount) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (3_412_000_000, "3.412 s"),
        (123_400_000_000, "2 min 03.4 s"),
        (119_960_000_000, "2 min 00.0 s"),
        (3_723_000_000_000, "1 h 02 min 03 s"),
    ],
)
def test_durations_for_people(ns: int, text: str) -> None:
    assert format_ns(ns) == text
