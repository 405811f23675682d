"""The prices used for the charges of a bill, with units, dates and sources."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from fractions import Fraction
from typing import Any

import polars as pl

from rose.pricing.closing.bill import Part
from rose.pricing.price_books.entries import Dated
from rose.pricing.price_books.pricebook import PriceBook


@dataclass(frozen=True, slots=True)
class PriceUsed:
    """The price of one `unit` of an `item`. An item is `device/<class>/<pool>`, `transfer/<route>` or `energy`.
    A `stretch` is the time between two price changes; stretches are numbered from 0."""

    item: str
    stretch: int
    name: str
    usd: Fraction
    unit: str
    commitment: str | None
    entry: Dated


def keyed(part: Part) -> pl.DataFrame:
    frame = part.frame.filter(pl.any_horizontal(pl.col("ns", "bytes", "energy_mw_ns", "cost_nano") != 0))
    changes_us = pl.Series([ns // 1000 for ns in part.book.change_times_ns()], dtype=pl.Int64)
    item = (
        pl.when(pl.col("kind") == "capacity")
        .then(pl.format("device/{}/{}", "device_class", "pool"))
        .when(pl.col("kind") == "transfer")
        .then(pl.format("transfer/{}", "route"))
        .otherwise(pl.lit("energy"))
    )
    cores = pl.col("device_class").str.starts_with("cpu")
    hours = pl.when(cores).then(pl.lit("Core-Hours")).otherwise(pl.lit("GPU-Hours"))
    unit = pl.col("kind").replace_strict({"transfer": "GB", "energy": "kWh"}, default=hours, return_dtype=pl.String)
    stretch = changes_us.search_sorted(frame["hour"].cast(pl.Int64), side="right")
    return frame.with_columns(item.alias("item"), stretch.cast(pl.Int64).alias("stretch"), unit.alias("unit"))


def used(part: Part) -> list[PriceUsed]:
    """Return the prices that a part's charges used, in the order of item and stretch. Raises PriceBookError."""
    keys = ("item", "stretch")
    firsts = (pl.col(name).first() for name in ("kind", "device_class", "pool", "route", "unit"))
    charged = keyed(part).group_by(*keys).agg(pl.col("hour").min(), *firsts)
    return [_price(part.book, row) for row in charged.sort(*keys).iter_rows(named=True)]


def _price(book: PriceBook, row: Mapping[str, Any]) -> PriceUsed:
    ns = int(row["hour"].replace(tzinfo=UTC).timestamp()) * 10**9
    thing: str = row["item"]
    commitment: str | None = None
    entry: Dated
    if row["kind"] == "capacity":
        entry = book.device_at(row["device_class"], row["pool"], ns)
        usd, commitment = Fraction(entry.usd_per_hour), entry.commitment
        # One price of a class has one name in all its pools.
        thing = "/".join(filter(None, ("device", row["device_class"], entry.pool, commitment)))
    elif row["kind"] == "transfer":
        entry = book.transfer_at(row["route"], ns)
        usd = Fraction(entry.usd_per_gb)
    else:
        entry = book.electricity_at(ns)
        usd = Fraction(entry.usd_per_kwh) * Fraction(entry.pue)
    since = "" if entry.valid_from is None else f"/{entry.valid_from}"
    name = f"{book.name}/{book.version}/{thing}{since}"
    return PriceUsed(row["item"], row["stretch"], name, usd, row["unit"], commitment, entry)
