from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from rose.pricing.price_books.vendors import VendorResource

CITED: dict[str, Any] = {"source": "by hand", "source_date": date(2026, 5, 1)}


@pytest.mark.parametrize(
    "fields",
    [
        {"device": "s0"},
        {"resource": "i-0*"},
        {"resource": "i-0*", "device": "s0", "class": "h100-sxm"},
        {"resource": "i-0*", "device": ""},
        {"sku": "a3", "class": "h100-sxm", "devices": 0},
        {"sku": "a3", "class": "h100-sxm", "low_share": Decimal("0.5"), "high_share": 2},
    ],
)
def test_a_vendor_s_resource_is_one_thing_of_the_fleet(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        VendorResource.model_validate(fields | CITED)


def test_what_the_vendor_calls_it_and_what_it_is() -> None:
    good = VendorResource.model_validate({"resource": "i-0*", "sku": "a3", "device": "s*", "devices": 8, **CITED})
    assert (good.key, good.days) == (("i-0*", "a3"), (None, None))
    resource, sku = (
        VendorResource.model_validate({name: "a3", "device": "s0", **CITED}) for name in ("resource", "sku")
    )
    assert (resource.key, sku.key) == (("a3",), ("sku", "a3"))
