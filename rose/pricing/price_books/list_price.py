"""What a device lists at, and what was agreed for it: prices above the one that is charged."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, model_validator

from rose.pricing.price_books.numbers import part, rate


class ListPrice(BaseModel):
    """`usd_per_hour` is charged. It is the list price less `discount`, or at most what was contracted.

    What was contracted is without the discount of a commitment, which the charged price has.
    """

    usd_per_hour: Annotated[Decimal, BeforeValidator(rate)]
    list_usd_per_hour: Annotated[Decimal, BeforeValidator(rate)] | None = None
    #: Part of the list price, from 0 to 1.
    discount: Annotated[Decimal, BeforeValidator(part)] | None = None
    contracted_usd_per_hour: Annotated[Decimal, BeforeValidator(rate)] | None = None

    @property
    def list_price(self) -> Decimal:
        """USD an hour; what is charged where the book has no list price."""
        return self.usd_per_hour if self.list_usd_per_hour is None else self.list_usd_per_hour

    @property
    def contracted_price(self) -> Decimal:
        """USD an hour; what is charged where the book has no other."""
        return self.usd_per_hour if self.contracted_usd_per_hour is None else self.contracted_usd_per_hour

    @model_validator(mode="after")
    def _agree(self) -> Self:
        charged, listed, contracted = self.usd_per_hour, self.list_usd_per_hour, self.contracted_usd_per_hour
        if listed is None:
            if self.discount is not None or contracted is not None:
                raise ValueError("has a discount or a contracted price and no list_usd_per_hour: add the list price")
            return self
        if self.discount is not None and contracted is not None:
            raise ValueError("has discount and contracted_usd_per_hour: keep one of the two")
        if self.discount is not None:
            less = Fraction(listed) * (1 - Fraction(self.discount))
            if less != charged:
                raise ValueError(
                    f"usd_per_hour {charged} is not list_usd_per_hour {listed} less {self.discount} of it, which is "
                    f"{_decimal(less):f}"
                )
        if not charged <= self.contracted_price <= listed:
            raise ValueError(
                f"needs usd_per_hour {charged} <= contracted_usd_per_hour {self.contracted_price} <= list_usd_per_hour "
                f"{listed}: a discount makes nothing dearer"
            )
        return self


def _decimal(exact: Fraction) -> Decimal:
    return Decimal(exact.numerator) / Decimal(exact.denominator)
