"""What vendors call the devices of a fleet: no prices, so that no stretch of prices begins or ends with them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rose.pricing.price_books.entries import Dated, Name


class VendorResource(Dated):
    """What a vendor calls devices, as patterns; they are devices (by their names, patterns too) or any of a class."""

    key_fields = ("resource", "sku")
    may_be_a_guess = False
    noun = "meaning"

    resource: Name | None = None
    sku: Name | None = None
    device: Name | None = None
    hardware: Name | None = None
    device_class: Name | None = Field(default=None, alias="class")
    #: What of them it charges for; None where its unit says that.
    item: Literal["device time", "energy", "transfer"] | None = None
    #: Devices of the fleet in one resource of the vendor's, such as 8 in an instance of 8 GPUs.
    devices: Annotated[int, Field(ge=1, le=1_000_000)] = 1

    @property
    def key(self) -> tuple[str, ...]:
        """What the vendor calls it: a resource and a SKU of one name are two things."""
        if self.resource is None:
            return "sku", str(self.sku)
        return (self.resource,) if self.sku is None else (self.resource, self.sku)

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        named = sum(name is not None for name in (self.device, self.hardware, self.device_class))
        if named != 1 or (self.resource is None and self.sku is None):
            raise ValueError("needs resource or sku as the vendor writes it, and one of device, hardware and class")
        return self
