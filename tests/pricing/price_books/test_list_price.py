from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from rose.pricing.price_books.entries import DevicePrice


def price(**fields: Any) -> DevicePrice:
    given = {
        "class": "h100-sxm",
        "usd_per_hour": Decimal("2.6"),
        "commitment": "1 year",
        "valid_from": date(2026, 1, 1),
    }
    return DevicePrice.model_validate({**given, "source": "s", "source_date": date(2026, 1, 1), **fields})


def test_what_is_charged_is_the_price_where_there_is_no_other() -> None:
    assert (price().list_price, price().contracted_price) == (Decimal("2.6"), Decimal("2.6"))
    for discount in (Decimal("0.35"), "0.35"):
        less = price(list_usd_per_hour=4, discount=discount)
        assert (less.list_price, less.contracted_price, less.usd_per_hour) == (4, Decimal("2.6"), Decimal("2.6"))
    agreed = price(list_usd_per_hour=4, contracted_usd_per_hour=3)
    assert (agreed.list_price, agreed.contracted_price) == (4, 3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"discount": Decimal("0.35")}, "no list_usd_per_hour: add the list price"),
        ({"contracted_usd_per_hour": 3}, "no list_usd_per_hour: add the list price"),
        ({"list_usd_per_hour": 4, "discount": Decimal("0.3")}, r"2\.6 is not .* 4 less 0\.3 of it, which is 2\.8"),
        ({"list_usd_per_hour": 4, "discount": Decimal("0.35"), "contracted_usd_per_hour": 3}, "keep one of the two"),
        ({"list_usd_per_hour": 2}, r"usd_per_hour 2\.6 <= contracted_usd_per_hour 2\.6 <= list_usd_per_hour 2"),
        ({"list_usd_per_hour": 4, "contracted_usd_per_hour": 2}, "a discount makes nothing dearer"),
        ({"list_usd_per_hour": 4, "discount": 2}, "must be a part of 1 such as 0.35"),
        ({"list_usd_per_hour": 4, "discount": True}, "must be a part of 1 such as 0.35"),
    ],
)
def test_prices_that_do_not_agree_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        price(**fields)
