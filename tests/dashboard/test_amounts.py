from __future__ import annotations

from fractions import Fraction

import pytest

from dashboard import amounts


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0.00"), (1_234_567_890_000, "$1,234.57"), (5_150_000, "$0.00515"), (100_000, "$0.000100"),
        (881, "$8.81 x 10⁻⁷"), (-881, "-$8.81 x 10⁻⁷"), (Fraction(1, 3), "$3.33 x 10⁻¹⁰"), (99_999, "$1.00 x 10⁻⁴"),
    ],
)  # fmt: skip
def test_three_digits_before_a_power_of_ten(nano: int | Fraction, text: str) -> None:
    assert amounts.amount(nano) == text


def test_another_currency_stands_in_front() -> None:
    assert amounts.amount(881, "EUR") == "EUR 8.81 x 10⁻⁷"


@pytest.mark.parametrize(
    ("nano", "count"), [(None, 1), (0, 1), (10_000_000, 1), (9_999_999, 1_000), (881, 1_000_000), (-881, 1_000_000)]
)
def test_a_small_price_is_of_a_thousand_or_a_million(nano: int | None, count: int) -> None:
    assert amounts.scale(nano)[0] == count


@pytest.mark.parametrize(
    ("largest", "currency", "shown"),
    [(1234.5, "USD", "dollar"), (1234.5, "CHF", "localized"), (0.00515, "USD", "%.7f"), (0.2, "EUR", "%.5f")],
)
def test_a_column_has_decimals_for_its_largest_amount(largest: float, currency: str, shown: str) -> None:
    column = amounts.column("cost", [None, largest, largest / 2], currency)
    assert column["type_config"]["format"] == shown
    assert (currency in column["label"]) == (shown != "dollar")
