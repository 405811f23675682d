"""What a number in a price book may be: exact, finite, of as many digits as a price has."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Annotated

from pydantic import BeforeValidator

#: More decimals, or more digits before the point, than any price has: a slip of the pen or a float written out.
DECIMALS_MAX = 12
_DIGITS_MAX = 12
#: An amount is a 64-bit integer of nano-dollars, below 9.2e9 dollars. The dearest device costs some tens of dollars an
#: hour, and in the smallest currency that is quoted some hundred thousands. At the bound a device runs for a year.
RATE_MAX = 1_000_000


def number(value: object) -> Decimal:
    # TOML numbers arrive as int or Decimal; text or a bool would be a slip of the pen.
    # pydantic reports a ValueError with its field; a TypeError would escape.
    if isinstance(value, str):
        raise ValueError("must be a number, without quotes")
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("must be a number such as 2.35")
    exact = Decimal(value)
    if not exact.is_finite():
        raise ValueError("must be a finite number")
    if exact and exact.adjusted() >= _DIGITS_MAX:
        raise ValueError(f"must be below 1e{_DIGITS_MAX}; check the unit")
    exponent = exact.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > DECIMALS_MAX:
        raise ValueError(f"has {-exponent} decimals, and a price has {DECIMALS_MAX} at most; round it")
    return exact


def rate(value: object) -> Decimal:
    exact = number(value)
    if exact.is_signed():
        raise ValueError("must be 0 or more; 0 says that it is free")
    return _at_most(exact, RATE_MAX)


def _at_most(exact: Decimal, bound: int) -> Decimal:
    if exact > bound:
        raise ValueError(
            f"is {exact}, and must be at most {bound:,}, since sums of amounts must stay below 2**63 nano-dollars; "
            "check the unit"
        )
    return exact


def _probability(value: object) -> Decimal:
    if isinstance(value, bool):
        return Decimal(int(value))
    try:
        exact = number(value)
    except ValueError:
        exact = None
    if exact is None or not 0 <= exact <= 1:
        raise ValueError("must be a probability from 0 to 1, or true or false for 1 or 0")
    return exact


def _low(value: object) -> Decimal:
    exact = number(value)
    if not 0 <= exact <= 1:
        raise ValueError("must be from 0 to 1: the low end of the entry's figures is that share of them")
    return exact


def _high(value: object) -> Decimal:
    exact = number(value)
    if exact < 1:
        raise ValueError("must be 1 or more: the high end of the entry's figures is that many times them")
    return exact


def _hours(value: object) -> Decimal:
    exact = number(value)
    if exact <= 0:
        raise ValueError("must be above 0: hours that a device is bought for at once")
    return exact


def _curve(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise ValueError("must be two or more pairs of a share of the budget and dollars: [[0.5, 0], [1.0, 0.001]]")
    points = []
    for point in value:
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise ValueError("must be pairs of a share of the budget and dollars, such as [0.5, 0.0001]")
        share, usd = number(point[0]), rate(point[1])
        if not 0 <= share <= 1:
            raise ValueError(f"has a share of the latency budget outside 0.0 to 1.0: {share}")
        points.append((share, usd))
    for (low, from_usd), (high, to_usd) in pairwise(points):
        if high <= low:
            raise ValueError(f"must be in ascending order of the share: {high} comes after {low}")
        if to_usd < from_usd:
            raise ValueError(f"must not fall as latency grows: {to_usd} at {high} after {from_usd} at {low}")
    return tuple(points)


#: From 0 to 1; `true` is 1 and `false` 0.
Probability = Annotated[Decimal, BeforeValidator(_probability)]
#: Ends of a 95% range as shares of a figure: at most 1, and at least 1.
Low = Annotated[Decimal, BeforeValidator(_low)]
High = Annotated[Decimal, BeforeValidator(_high)]
#: Hours that a device is paid for at least.
Increment = Annotated[Decimal, BeforeValidator(_hours)]
#: Dollars for a request by the share of its latency budget that it took: straight lines between the points, level
#: before the first and after the last.
LatencyCurve = Annotated[tuple[tuple[Decimal, Decimal], ...], BeforeValidator(_curve)]
