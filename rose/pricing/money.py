"""Money as integer nano-dollars, and splits that lose nothing.

A rate is a `decimal.Decimal`; an amount is an `int` of nano-dollars. Floats never carry an amount that is added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import TypeVar

from rose.errors import UserError

K = TypeVar("K")

#: The currency of every price book.
USD = "USD"
NANO_USD_PER_USD = 1_000_000_000
NS_PER_HOUR = 3_600_000_000_000
NS_PER_S = 1_000_000_000

#: Wide enough that no product of a rate, a count and a conversion is rounded before the last step.
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN)


class PricingError(UserError):
    """A figure that cannot be given honestly; the message says which one, why, and what to do."""


class QuestionError(PricingError):
    """A wrong period, dimension, tag, run or value in a question; the message names it."""


class NothingChargedError(PricingError):
    """The period has no provisioned device time: there is nothing to price, which is not the same as nothing paid."""


def nano_usd(usd: Decimal) -> int:
    """Dollars to whole nano-dollars, half to even."""
    return int(_CONTEXT.multiply(usd, NANO_USD_PER_USD).to_integral_value(rounding=ROUND_HALF_EVEN, context=_CONTEXT))


def nano_usd_of(amount: Fraction) -> int:
    """An exact amount in dollars to whole nano-dollars, half to even."""
    return round(amount * NANO_USD_PER_USD)


def charge_nano_usd(usd_per_hour: Decimal, duration_ns: int) -> int:
    """What `duration_ns` costs at an hourly rate, rounded once, half to even."""
    return round(Fraction(usd_per_hour) * NANO_USD_PER_USD * duration_ns / NS_PER_HOUR)


def split(total: int, weights: Mapping[K, int]) -> dict[K, int]:
    """Divide an integer in proportion to non-negative integer weights, by largest remainder.

    The parts sum to `total` exactly, for a negative total too. Ties go to the key that comes first, so the same
    input gives the same output. Where every weight is zero the parts are as equal as integers allow.

    Raises ValueError for no keys or a negative weight.
    """
    if not weights:
        raise ValueError(f"cannot split {total} among no keys")
    if any(weight < 0 for weight in weights.values()):
        raise ValueError(f"weights must not be negative, got {dict(weights)}")
    effective = weights if any(weights.values()) else dict.fromkeys(weights, 1)
    whole = sum(effective.values())
    parts = {key: divmod(total * weight, whole) for key, weight in effective.items()}
    return _by_largest_remainder(parts, total)


def rounded(parts: Mapping[K, Fraction], total: int | None = None) -> dict[K, int]:
    """Whole numbers next to `parts` that sum to `total`, or to the rounded sum of the parts, by largest remainder.

    `total` may differ from the exact sum by one for each part; ties go to the part that comes first.
    """
    exact = sum(parts.values(), Fraction(0))
    total = round(exact) if total is None else total
    assert abs(total - exact) < len(parts) + 1, f"{len(parts)} parts that come to {exact} cannot sum to {total}"
    return _by_largest_remainder({key: divmod(part, 1) for key, part in parts.items()}, total)


def _by_largest_remainder(parts: Mapping[K, tuple[int, Fraction | int]], total: int) -> dict[K, int]:
    """Whole parts with what is left until they sum to `total` handed out to the largest remainders, one to each.

    Where they sum to more, the smallest remainders give one up.
    """
    wholes = {key: whole for key, (whole, _) in parts.items()}
    left = total - sum(wholes.values())
    order = sorted(parts, key=lambda key: -parts[key][1])
    for place in range(abs(left)):
        wholes[order[place % len(order)] if left > 0 else order[-1 - place % len(order)]] += 1 if left > 0 else -1
    assert sum(wholes.values()) == total
    return wholes


def format_usd(amount_nano_usd: int) -> str:
    """`$1,234.57` from a dollar up; below it, as many decimals as show three significant digits: `$0.00123`."""
    usd = Decimal(amount_nano_usd).scaleb(-9)
    size = abs(usd)
    places = 2 if size >= 1 or size == 0 else min(9, 2 - size.adjusted())
    return f"{'-' if usd < 0 else ''}${size:,.{places}f}"


def signed_usd(amount_nano_usd: int) -> str:
    """As `format_usd`, with a plus above 0: `+$1.20`, `-$0.003`."""
    return ("+" if amount_nano_usd > 0 else "") + format_usd(amount_nano_usd)


def format_money(amount_nano: int, currency: str) -> str:
    """As `format_usd`, of any currency: `EUR 1,234.57` where it is not USD."""
    text = format_usd(amount_nano)
    return text if currency == "USD" else text.replace("$", f"{currency} ")


def signed_money(amount_nano: int, currency: str) -> str:
    """As `format_money`, with a plus above 0."""
    return ("+" if amount_nano > 0 else "") + format_money(amount_nano, currency)


def format_ns(duration_ns: int) -> str:
    """`1 h 02 min 03 s`, `2 min 03.4 s`, `3.412 s`: three significant parts at most."""
    if duration_ns < 60 * NS_PER_S:
        return f"{duration_ns / NS_PER_S:.3f} s"
    tenths = round(duration_ns / NS_PER_S * 10)
    if tenths < 36_000:
        return f"{tenths // 600} min {tenths % 600 / 10:04.1f} s"
    minutes, seconds = divmod(tenths // 10, 60)
    return f"{minutes // 60:,} h {minutes % 60:02} min {seconds:02} s"
