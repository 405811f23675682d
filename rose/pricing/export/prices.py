"""The prices of a bill's charges: each with its unit, dates and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import polars as pl

from rose.pricing.closing.bill import Part
from rose.pricing.price_books.entries import Dated
from rose.pricing.price_books.pricebook import PriceBook

_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceUsed:
    """Dollars for a `unit` of an `item` (`device/<class>/<pool>`, `transfer/<route>`, `energy`) in a `stretch`.

    A stretch, from 0, is a span without a change of prices. `name` identifies the book's entry.
    """

    item: str
    stretch: int
    name: str
    usd: Decimal
    unit: str
    commitment: str | None
    entry: Dated


def keyed(part: Part) -> pl.DataFrame:
    """Return charges that have an amount, with `item` and `stretch` of their price, and its `unit`.

    Rows that only count tokens are left out: they have no price.
    """
    frame = part.frame.filter(pl.any_horizontal(pl.col("ns", "bytes", "energy_mw_ns", "cost_nano") != 0))
    changes_us = pl.Series([ns // 1000 for ns in part.book.change_times_ns()], dtype=pl.Int64)
    item = (
        pl.when(pl.col("kind") == "capacity")
        .then(pl.format("device/{}/{}", "device_class", "pool"))
        .when(pl.col("kind") == "transfer")
        .then(pl.format("transfer/{}", "route"))
        .otherwise(pl.lit("energy"))
    )
    unit = (
        pl.when(pl.col("kind") == "transfer")
        .then(pl.lit("GB"))
        .when(pl.col("kind") == "energy")
        .then(pl.lit("kWh"))
        .when(pl.col("device_class").str.starts_with("cpu"))
        .then(pl.lit("Core-Hours"))
        .otherwise(pl.lit("GPU-Hours"))
    )
    stretch = changes_us.search_sorted(frame["hour"].cast(pl.Int64), side="right")
    return frame.with_columns(item.alias("item"), stretch.cast(pl.Int64).alias("stretch"), unit.alias("unit"))


def used(part: Part) -> list[PriceUsed]:
    """Return every price of the part's charges, by item and stretch. Raises PriceBookError."""
    keys = ("item", "stretch")
    firsts = (pl.col(name).first() for name in ("kind", "device_class", "pool", "route", "unit"))
    charged = keyed(part).group_by(*keys).agg(pl.col("hour").min(), *firsts)
    return [_price(part.book, row) for row in charged.sort(*keys).iter_rows(named=True)]


def _price(book: PriceBook, row: Mapping[str, Any]) -> PriceUsed:
    ns = int(row["hour"].replace(tzinfo=UTC).timestamp()) * 10**9
    if row["kind"] == "capacity":
        device = book.device_at(row["device_class"], row["pool"], ns)
        thing = f"device/{row['device_class']}" + (f"/{device.pool}" if device.pool else "")
        return _used(book, row, device, f"{thing}/{device.commitment}", device.usd_per_hour, device.commitment)
    if row["kind"] == "transfer":
        route = book.transfer_at(row["route"], ns)
        return _used(book, row, route, row["item"], route.usd_per_gb)
    power = book.electricity_at(ns)
    return _used(book, row, power, "energy", _CONTEXT.multiply(power.usd_per_kwh, power.pue))


def _used(
    book: PriceBook, row: Mapping[str, Any], entry: Dated, thing: str, usd: Decimal, commitment: str | None = None
) -> PriceUsed:
    since = "" if entry.valid_from is None else f"/{entry.valid_from}"
    return PriceUsed(
        item=row["item"],
        stretch=row["stretch"],
        name=f"{book.name}/{book.version}/{thing}{since}",
        usd=usd,
        unit=row["unit"],
        commitment=commitment,
        entry=entry,
    )
