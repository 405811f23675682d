"""The ledger's side: what each device cost on each day, from the books where days are closed, priced now elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from rose.errors import did_you_mean
from rose.pricing.closing.period import Period, naive
from rose.pricing.figures import Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend.gather import gather

#: Buckets that are charged beside device time.
_BESIDE = ("transfer", "energy")
_COLUMNS = ("hour", "hardware_id", "device_id", "device_class", "bucket", "ns", "cost_nano")


def charges(
    root: Path,
    period: Period,
    price_book: str | PriceBook | None = None,
    *,
    classes: Sequence[str] = (),
    provenance: str | None = None,
    allow_unverified: bool = False,
) -> tuple[pl.DataFrame, Stamp]:
    """Sums by `day`, `hardware_id`, `device_id`, `device_class` and `item`: `ns` of device time and `cost_nano`.

    `item` is `device time`, `transfer` or `energy`. Raises PricingError for a class that no device has, and what
    `gather` raises.
    """
    gathered = gather(root, period, price_book, grain="day", provenance=provenance, allow_unverified=allow_unverified)
    inside = pl.col("hour").is_between(naive(period.from_ns), naive(period.to_ns), closed="left")
    beside = pl.col("bucket").is_in(_BESIDE)
    parts = [pl.scan_parquet(path, glob=False) for _, path in gathered.files]
    parts += [frame.lazy() for _, frame in gathered.frames]
    frame = pl.concat(
        part.select(_COLUMNS)
        .filter(inside)
        .group_by(
            pl.col("hour").alias("day"),
            "hardware_id",
            "device_id",
            "device_class",
            pl.when(beside).then("bucket").otherwise(pl.lit("device time")).alias("item"),
        )
        .agg(pl.when(beside).then(0).otherwise("ns").sum().alias("ns"), pl.col("cost_nano").sum())
        for part in parts
    ).collect()
    known = set(frame["device_class"].unique())
    if wrong := [name for name in classes if name not in known]:
        raise PricingError(f"no device of {period.label} is of class {wrong[0]!r}{did_you_mean(wrong[0], known)}")
    return (frame.filter(pl.col("device_class").is_in(classes)) if classes else frame), gathered.stamp
