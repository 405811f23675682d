"""The prices that the charges of a bill were made with: each with its unit, its dates and its source."""

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

#: Wide enough that no product of two prices is rounded.
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceUsed:
    """Dollars for a `unit` of an `item` (`device/<class>/<pool>`, `transfer/<route>`, `energy`) in a `stretch`.

    A stretch is a span of time in which no price of the book changes, counted from 0. `name` is the same for
    everything that one entry of the book prices.
    """

    item: str
    stretch: int
    name: str
    usd: Decimal
    unit: str
    commitment: str | None
    #: The entry of the book, with its dates and its source.
    entry: Dated


def keyed(part: Part) -> pl.DataFrame:
    """The charges that have an amount, with the `item` and the `stretch` of their price, and the `unit` it is for.

    A row that only counts tokens has no price: its device may have joined no run.
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
    # A unit says what it counts: an hour of a core is no hour of a GPU.
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
    """Every price that a charge of the part was made with, by item and stretch. Raises PriceBookError."""
    keys = ("item", "stretch")
    firsts = (pl.col(name).first() for name in ("kind", "device_class", "pool", "route", "unit"))
    charged = keyed(part).group_by(*keys).agg(pl.col("hour").min(), *firsts)
    return [_price(part.book, row) for row in charged.sort(*keys).iter_rows(named=True)]


def _price(book: PriceBook, row: Mapping[str, Any]) -> PriceUsed:
    ns = int(row["hour"].replace(tzinfo=UTC).timestamp()) * 10**9
    if row["kind"] == "capacity":
        device = book.device_at(row["device_class"], row["pool"], ns)
        # One price of a class is one thing, whichever pools it is for.
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
