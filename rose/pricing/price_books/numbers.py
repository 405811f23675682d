"""Numbers of a price book: exact, finite, with as many digits as a price has."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

#: More decimals or digits are a mistake, or a float written out.
DECIMALS_MAX = 12
_DIGITS_MAX = 12
#: An amount is a 64-bit integer of nano-dollars, below 9.2e9 dollars: at this rate a device can run for a year.
RATE_MAX = 1_000_000


def number(value: object) -> Decimal:
    """Return the exact number of a TOML int or Decimal. Raises ValueError for anything else."""
    # pydantic reports a ValueError with its field; a TypeError would escape.
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("must be a number such as 2.35, without quotes")
    exact = Decimal(value)
    if not exact.is_finite():
        raise ValueError("must be a finite number")
    if exact and exact.adjusted() >= _DIGITS_MAX:
        raise ValueError(f"must be below 1e{_DIGITS_MAX}; check the unit")
    exponent = exact.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > DECIMALS_MAX:
        raise ValueError(f"has {-exponent} decimals, and a price has {DECIMALS_MAX} at most; round it")
    return exact


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def rising(points: Sequence[tuple[Decimal, Decimal]]) -> Sequence[tuple[Decimal, Decimal]]:
    """Return the points. Raises ValueError unless x grows and y never falls."""
    for (low, from_y), (high, to_y) in pairwise(points):
        if high <= low:
            raise ValueError(f"points must be in ascending order: {high} comes after {low}")
        if to_y < from_y:
            raise ValueError(f"points must not fall: {to_y} at {high} after {from_y} at {low}")
    return points


_Number = Annotated[Decimal, BeforeValidator(number)]
Rate = Annotated[_Number, Field(ge=0, le=RATE_MAX)]
Share = Annotated[_Number, Field(ge=0, le=1)]
#: `true` is 1 and `false` 0.
Probability = Annotated[Share, BeforeValidator(lambda value: int(value) if isinstance(value, bool) else value)]
AtLeastOne = Annotated[_Number, Field(ge=1)]
Increment = Annotated[_Number, Field(gt=0)]
#: (share, amount): straight lines between points, level before the first and after the last.
Curve = Annotated[
    tuple[Annotated[tuple[Share, Rate], BeforeValidator(_tuple)], ...],
    BeforeValidator(_tuple),
    Field(min_length=2),
    AfterValidator(rising),
]
