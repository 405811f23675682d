from fractions import Fraction
from typing import Any

import pytest

from dashboard import format as words


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0.00"),
        (1_234_567_890_000, "$1,234.57"),
        (5_150_000, "$0.00515"),
        (100_000, "$0.000100"),
        (-881, "-$8.81 x 10⁻⁷"),
        (Fraction(1, 3), "$3.33 x 10⁻¹⁰"),
        (99_999, "$1.00 x 10⁻⁴"),
    ],
)
def test_three_digits_before_a_power_of_ten(nano: int | Fraction, text: str) -> None:
    assert words.amount(nano) == text


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1234.5, 617.0], "dollar"),
        ([0.00515, None, 0.00258], "%.5f"),
        ([11.66, 0.0156], "%.4f"),
        ([0.2, 0.0], "%.3f"),
        ([1234.5, 1e-9], "%.3f"),
    ],
)
def test_a_column_has_three_digits_of_its_smallest_amount(values: list[float | None], shown: str) -> None:
    column: Any = words.money_column("cost", values)
    assert column["type_config"]["format"] == shown
    assert ("USD" in column["label"]) == (shown != "dollar")


def test_durations_and_shares_are_rounded_but_never_to_all_or_nothing() -> None:
    durations = {0.4: "0 s", 119: "119 s", 600: "10 min", 7200: "2 h", 200_000: "2.31 days"}
    assert {seconds: words.duration(seconds) for seconds in durations} == durations
    shares = (Fraction(1), Fraction(9_999, 10_000), Fraction(0), Fraction(1, 10_000), Fraction(1, 3), None)
    assert [words.percent(share) for share in shares] == ["100.0%", "99.99%", "0.0%", "0.01%", "33.3%", None]
    assert words.change(110, 100, "2026-05") == "+10.0% on 2026-05"
    assert words.change(1, 0, "2026-05") is None
