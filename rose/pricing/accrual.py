"""What each device cost on each UTC day, by bucket: the run's report, cut into days that a month can be made of.

A day's time is what its slices report; a slice counts on the day it begins on. A price changes only between two UTC
days, so a day has one price: its time at that price is rounded once to a nano-dollar, and divided among the buckets
by time. The buckets of a day therefore sum exactly to the device's cost of that day. Time that a device was
provisioned and no slice reports is not in here; the report of the run has it as `unaccounted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from rose.pricing.money import PricingError, charge_nano_usd, split
from rose.pricing.pricebook import PriceBook


@dataclass(frozen=True, slots=True, order=True)
class DeviceDay:
    """One device of one run on one UTC day."""

    day: date
    run_id: str
    provenance: str
    device_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DayCost:
    """Time and dollars of a device on a day; both mappings have the same buckets, those with time in them."""

    device_class: str
    bucket_ns: Mapping[str, int]
    cost_nano: Mapping[str, int]


def price_day(what: DeviceDay, device_class: str | None, bucket_ns: Mapping[str, int], book: PriceBook) -> DayCost:
    """Price a device's time on a day. Raises PricingError if it never joined, PriceBookError if it has no price."""
    if device_class is None:
        raise PricingError(
            f"device {what.device_id} of run {what.run_id} reports time on {what.day} and never joined the fleet, so "
            "nothing says which class it is priced by"
        )
    midnight = datetime(what.day.year, what.day.month, what.day.day, tzinfo=UTC)
    from_ns, to_ns = (int(at.timestamp()) * 1_000_000_000 for at in (midnight, midnight + timedelta(days=1)))
    ((_, _, price),) = book.device_prices(device_class, from_ns, to_ns)
    used_ns = {bucket: ns for bucket, ns in bucket_ns.items() if ns}
    total_nano = charge_nano_usd(price.usd_per_hour, sum(used_ns.values()))
    return DayCost(device_class=device_class, bucket_ns=used_ns, cost_nano=split(total_nano, used_ns))
