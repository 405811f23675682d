from __future__ import annotations

from fractions import Fraction

import pytest

from dashboard import amounts


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0.00"),
        (1_234_567_890_000, "$1,234.57"),
        (5_150_000, "$0.00515"),
        (100_000, "$0.000100"),
        (881, "$8.81 x 10⁻⁷"),
        (-881, "-$8.81 x 10⁻⁷"),
        (Fraction(1, 3), "$3.33 x 10⁻¹⁰"),
        (99_999, "$1.00 x 10⁻⁴"),
    ],
)
def test_three_digits_before_a_power_of_ten(nano: int | Fraction, text: str) -> None:
    assert amounts.amount(nano) == text


@pytest.mark.parametrize(
    ("nano", "count"), [(None, 1), (0, 1), (10_000_000, 1), (9_999_999, 1_000), (881, 1_000_000), (-881, 1_000_000)]
)
def test_a_small_price_is_of_a_thousand_or_a_million(nano: int | None, count: int) -> None:
    assert amounts.scale(nano)[0] == count


@pytest.mark.parametrize(
    ("values", "currency", "shown"),
    [
        ([1234.5, 617.0], "USD", "dollar"),
        ([1234.5], "CHF", "localized"),
        ([0.0, None], "USD", "dollar"),
        ([0.00515, None, 0.00258], "USD", "%.5f"),
        ([11.66, 0.0156], "USD", "%.4f"),
        ([0.2, 0.0], "EUR", "%.3f"),
        ([1234.5, 1e-9], "USD", "%.3f"),
    ],
)
def test_a_column_has_three_digits_of_its_smallest_amount(
    values: list[float | None], currency: str, shown: str
) -> None:
    column = amounts.column("cost", values, currency)
    assert column["type_config"]["format"] == shown
    assert (currency in column["label"]) == (shown != "dollar")
