"""Amounts of any size that read well: three significant digits, and never a nano-dollar where a reader looks first."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

import streamlit as st
from streamlit.elements.lib.column_types import ColumnConfig

from dashboard.cards import Money
from rose.pricing.money import USD, format_money

#: Below it a price of one thing is shown for a thousand of them, or a million.
SMALL_NANO = 10_000_000
#: Below it an amount is written with a power of ten.
_TINY_NANO = 100_000
_SCALES: tuple[tuple[int, str], ...] = ((1, ""), (1_000, "1,000 "), (1_000_000, "1,000,000 "))
_DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
#: Streamlit's own formats of money, with separators of thousands.
_WHOLE = {"USD": "dollar", "EUR": "euro", "JPY": "yen"}


def amount(nano: int | Fraction, currency: str = USD) -> str:
    """`$1,234.57`, `$0.00123`, and below a ten-thousandth `$4.57 x 10⁻⁷`; of whole or exact nano-dollars."""
    exact = Fraction(nano)
    if exact == 0 or abs(exact) >= _TINY_NANO:
        return format_money(round(exact), currency)
    size = Decimal(exact.numerator) / Decimal(exact.denominator) * Decimal("1e-9")
    mantissa, exponent = f"{abs(size):.2e}".split("e")
    sign, symbol = "-" if exact < 0 else "", "$" if currency == USD else f"{currency} "
    return f"{sign}{symbol}{mantissa} x 10{str(int(exponent)).translate(_DIGITS)}"


def converted(nano: int | Fraction, money: Money) -> str:
    """As `amount`, in the currency of `money`."""
    return amount(nano, money.currency)


def scale(nano: int | float | Fraction | None) -> tuple[int, str]:
    """Of how many things a price is shown, and how they begin: one of them, 1,000 or 1,000,000."""
    if nano is None or nano == 0:
        return _SCALES[0]
    for count, text in _SCALES:
        if abs(float(nano)) * count >= SMALL_NANO:
            return count, text
    return _SCALES[-1]


def column(label: str, amounts: Iterable[float | None], currency: str, about: str | None = None) -> ColumnConfig:
    """A column of numbers that sort as numbers, with decimals for three digits of the smallest, within reason."""
    places = _places(amounts)
    shown = _WHOLE.get(currency, "localized") if places == 2 else f"%.{places}f"
    named = label if shown in _WHOLE.values() else f"{label} ({currency})"
    return st.column_config.NumberColumn(named, format=shown, help=about)


def hours(values: Iterable[float | None], about: str | None = None) -> ColumnConfig:
    """A column of device-hours, with decimals for three digits of the smallest, within reason."""
    places = _places(values)
    return st.column_config.NumberColumn(format="localized" if places == 2 else f"%.{places}f", help=about)


def _places(values: Iterable[float | None]) -> int:
    """Decimals, two at least."""
    sizes = [Decimal(abs(value)).adjusted() for value in values if value]
    return max(2, min(2 - min(sizes), 6 - max(sizes))) if sizes else 2
