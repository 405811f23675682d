"""Money is an integer number of nano-dollars, and a price per unit is a `Decimal`. Floats are never added up."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

from rose.errors import UserError

K = TypeVar("K")

USD = "USD"
NANO_USD_PER_USD = 1_000_000_000
NS_PER_HOUR = 3_600_000_000_000
NS_PER_S = 1_000_000_000
J_PER_KWH = 3_600_000
MW_NS_PER_KWH = J_PER_KWH * 1000 * NS_PER_S  #: Milliwatt-nanoseconds in a kilowatt-hour.


class PricingError(UserError):
    """A correct figure cannot be given. The message says why, and what the reader can do."""


class QuestionError(PricingError):
    """The question has a wrong period, dimension, tag, run or value."""


class NothingChargedError(PricingError):
    """The period has no provisioned device time. This differs from a cost of 0."""


def nano_usd_of(usd: Fraction | Decimal) -> int:
    return round(Fraction(usd) * NANO_USD_PER_USD)


def charge_nano_usd(usd_per_hour: Decimal, duration_ns: int) -> int:
    return round(Fraction(usd_per_hour) * NANO_USD_PER_USD * duration_ns / NS_PER_HOUR)


def split(total: int, weights: Mapping[K, int]) -> dict[K, int]:
    """Divide an integer in proportion to integer weights, by largest remainder. In a tie, the first key gets more.

    If all weights are zero, the parts are equal. Raises ValueError if there are no keys or a weight is negative."""
    if not weights:
        raise ValueError(f"cannot split {total}: there are no keys")
    if any(weight < 0 for weight in weights.values()):
        raise ValueError(f"weights must not be negative, got {dict(weights)}")
    effective = weights if any(weights.values()) else dict.fromkeys(weights, 1)
    whole = sum(effective.values())
    return _by_largest_remainder({key: divmod(total * weight, whole) for key, weight in effective.items()}, total)


def rounded(parts: Mapping[K, Fraction], total: int | None = None) -> dict[K, int]:
    """Round `parts` to integers that sum to `total` (by default, their rounded sum), by largest remainder. `total` may
    differ from the exact sum by at most one per part."""
    exact = sum(parts.values(), Fraction(0))
    total = round(exact) if total is None else total
    assert abs(total - exact) < len(parts) + 1, f"{len(parts)} parts that come to {exact} cannot sum to {total}"
    return _by_largest_remainder({key: divmod(part, 1) for key, part in parts.items()}, total)


def _by_largest_remainder(parts: Mapping[K, tuple[int, Fraction | int]], total: int) -> dict[K, int]:
    wholes = {key: whole for key, (whole, _) in parts.items()}
    left = total - sum(wholes.values())
    order = sorted(parts, key=lambda key: -parts[key][1])
    for place in range(abs(left)):
        wholes[order[place % len(order)] if left > 0 else order[-1 - place % len(order)]] += 1 if left > 0 else -1
    assert sum(wholes.values()) == total
    return wholes


def format_usd(amount_nano_usd: int) -> str:
    """Return a text such as `$1,234.57`, or `$0.00123` with three significant digits below a dollar."""
    usd = Decimal(amount_nano_usd).scaleb(-9)
    size = abs(usd)
    places = 2 if size >= 1 or size == 0 else min(9, 2 - size.adjusted())
    return f"{'-' if usd < 0 else ''}${size:,.{places}f}"


def signed_usd(amount_nano_usd: int) -> str:
    return ("+" if amount_nano_usd > 0 else "") + format_usd(amount_nano_usd)


def format_ns(duration_ns: int) -> str:
    """Return a text such as `1 h 02 min 03 s`, `2 min 03.4 s` or `3.412 s`."""
    if duration_ns < 60 * NS_PER_S:
        return f"{duration_ns / NS_PER_S:.3f} s"
    tenths = round(duration_ns / NS_PER_S * 10)
    if tenths < 36_000:
        return f"{tenths // 600} min {tenths % 600 / 10:04.1f} s"
    minutes, seconds = divmod(tenths // 10, 60)
    return f"{minutes // 60:,} h {minutes % 60:02} min {seconds:02} s"
