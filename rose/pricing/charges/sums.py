"""Sums of charges that no 64-bit integer wraps."""

from __future__ import annotations

import polars as pl

from rose.pricing.money import PricingError

#: Amounts of `Charges.frame` that are added up in 64 bits.
_AMOUNTS = ("cost_nano", "ns", "tokens", "bytes")
_BOUND = 2**63


def exact(amount: str) -> pl.Expr:
    """Return the sum of an integer column of any size: metered energy passes 64 bits in 5 hours at 500 W."""
    return pl.col(amount).cast(pl.Int128).sum()


def total(frame: pl.DataFrame, amount: str = "cost_nano") -> int:
    return int(frame.select(exact(amount)).item())


def refuse_too_large(frame: pl.DataFrame) -> None:
    """Raises PricingError if the sum of some rows may not fit into 64 bits."""
    for amount in _AMOUNTS:
        size = int(frame[amount].cast(pl.Int128).abs().sum())
        if size >= _BOUND:
            raise PricingError(
                f"{amount} of the period comes to {size:,}, and sums are kept exactly below {_BOUND:,}: check the unit "
                "of the prices (`rose price`), or price a shorter period"
            )
