"""What each device cost on each UTC day, by bucket: the charges, cut into days that a month can be made of.

Every bucket of the bill is in it, `unaccounted`, `transfer` and `energy` among them, so the buckets of a day sum
exactly to what the device cost that day.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import polars as pl

from rose.ledger import catalog
from rose.ledger.growth import archive
from rose.pricing import charges
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.price_books.pricebook import PriceBook

_DAY_NS = 24 * NS_PER_HOUR


@dataclass(frozen=True, slots=True, order=True)
class DeviceDay:
    """One device of one run on one UTC day."""

    day: date
    run_id: str
    provenance: str
    device_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DayCost:
    """Time and dollars of a device on a day; both mappings have the same buckets, those with either in them.

    `device_class` names several, with commas, where the device came back in another one.
    """

    device_class: str
    bucket_ns: Mapping[str, int]
    cost_nano: Mapping[str, int]


def price_days(root: Path, book: PriceBook) -> dict[DeviceDay, DayCost]:
    """The cost of every device and day, of each provenance for itself; from the first whole day after the archive.

    Raises as `charges.price` does, but gives nothing for a ledger without device time.
    """
    with catalog.connect(root) as connection:
        provenances = connection.execute("SELECT DISTINCT provenance FROM device ORDER BY provenance").fetchall()
    newest_us = archive.newest_us(root)
    from_ns = None if newest_us is None else (newest_us * 1000 // _DAY_NS + 1) * _DAY_NS
    keys = ("day", "run_id", "provenance", "device_id", "device_class")
    classes: dict[DeviceDay, set[str]] = {}
    times, costs = (defaultdict[DeviceDay, Counter[str]](Counter) for _ in range(2))
    for (provenance,) in provenances:
        frame = charges.price(root, book, from_ns=from_ns, provenance=provenance).frame
        summed = (
            frame.group_by(pl.col("hour").dt.date().alias("day"), *keys[1:], "bucket")
            .agg(pl.col("ns", "cost_nano").sum())
            .sort(*keys, "bucket")
        )
        for day, run_id, origin, device_id, device_class, bucket, ns, nano in summed.iter_rows():
            what = DeviceDay(day, run_id, origin, device_id)
            classes.setdefault(what, set()).add(device_class)
            times[what][bucket] += ns
            costs[what][bucket] += nano
    return {
        what: DayCost(device_class=", ".join(sorted(classes[what])), bucket_ns=times[what], cost_nano=cost)
        for what, cost in costs.items()
    }
