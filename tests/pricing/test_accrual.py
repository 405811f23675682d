from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.events import BUCKETS
from rose.pricing.accrual import DeviceDay, price_day
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, PricingError
from rose.pricing.pricebook import DevicePrice, PriceBook, PriceBookError, load

CHANGE = date(2026, 6, 15)
SOURCE = {"source": "by hand", "source_date": date(2026, 6, 1)}


def book(before: Decimal, after: Decimal) -> PriceBook:
    """The example's, with one class whose price changes on CHANGE and ends a month later."""

    def price(usd_per_hour: Decimal, start: date, end: date) -> DevicePrice:
        return DevicePrice.model_validate(
            {"class": "h100-sxm", "usd_per_hour": usd_per_hour, "commitment": "none", "valid_from": start,
             "valid_to": end, **SOURCE}
        )  # fmt: skip

    prices = [price(before, date(2026, 6, 1), CHANGE), price(after, CHANGE, date(2026, 7, 15))]
    return load("example").model_copy(update={"device": prices, "path": "by hand"})


def device_day(day: date) -> DeviceDay:
    return DeviceDay(day, "run", "live", "d")


rates = st.decimals(min_value=0, max_value=1000, places=6, allow_nan=False)
times = st.dictionaries(st.sampled_from(BUCKETS), st.integers(0, 86_400 * 10**9), min_size=1).filter(
    lambda found: any(found.values())
)


@given(rates, rates, times, st.dates(date(2026, 6, 1), date(2026, 7, 14)))
def test_the_buckets_of_a_day_sum_to_the_device_s_cost_of_that_day(
    before: Decimal, after: Decimal, bucket_ns: dict[str, int], day: date
) -> None:
    cost = price_day(device_day(day), "h100-sxm", bucket_ns, book(before, after))
    rate = before if day < CHANGE else after
    exact = Fraction(rate) * NANO_USD_PER_USD * sum(bucket_ns.values()) / NS_PER_HOUR
    assert sum(cost.cost_nano.values()) == round(exact)
    assert cost.bucket_ns == {bucket: ns for bucket, ns in bucket_ns.items() if ns}
    assert cost.cost_nano.keys() == cost.bucket_ns.keys()
    for bucket, ns in cost.bucket_ns.items():
        share = exact * ns / sum(bucket_ns.values())
        assert abs(cost.cost_nano[bucket] - share) < 2
    assert cost == price_day(device_day(day), "h100-sxm", bucket_ns, book(before, after))


def test_a_price_changes_at_midnight_utc() -> None:
    hour = {"rollout": NS_PER_HOUR}
    prices = book(Decimal(2), Decimal(3))
    days = [CHANGE - timedelta(days=1), CHANGE]
    costs = [price_day(device_day(day), "h100-sxm", hour, prices).cost_nano for day in days]
    assert costs == [{"rollout": 2 * NANO_USD_PER_USD}, {"rollout": 3 * NANO_USD_PER_USD}]


def test_a_day_without_a_price_or_a_class_is_refused() -> None:
    hour, prices = {"idle": NS_PER_HOUR}, book(Decimal(2), Decimal(3))
    with pytest.raises(PriceBookError, match="no price for device class 'h100-sxm' on 2026-07-15"):
        price_day(device_day(date(2026, 7, 15)), "h100-sxm", hour, prices)
    with pytest.raises(PricingError, match="device d of run run reports time on 2026-06-02 and never joined"):
        price_day(device_day(date(2026, 6, 2)), None, hour, prices)
