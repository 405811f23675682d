"""Drill-downs of charges as tables: each row's amount in dollars and in whole nano-dollars, and the sum at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import streamlit as st

from dashboard import amounts, escape
from dashboard.books import AMORTIZED
from rose.pricing.charges.loaded import CAUSE
from rose.pricing.charges.sums import exact
from rose.pricing.closing import charge_algebra
from rose.pricing.closing.bill import Bill
from rose.pricing.money import NS_PER_HOUR, USD, format_usd

#: Of each view, the column that sums to the bill.
AMOUNT: Mapping[str, str] = {AMORTIZED: "cost_nano", "fully-loaded": "loaded_nano"}


def table(frame: pl.DataFrame, by: Sequence[str], view: str, *, always: str | None = None) -> pl.DataFrame:
    """Rows of charges by dimensions, the dearest first, and their sum, which is the frame's own.

    `always` is a value of the one dimension that has a row even where it cost nothing. Device time and tokens are left
    out of the fully loaded view, of which the rows that were spread are gone.
    """
    amount = AMOUNT[view]
    whole = charge_algebra.total(frame, amount)
    rows = charge_algebra.drill(frame, by, amount)
    assert sum(row[amount] for row in rows) == whole
    if always is not None and all(row[by[0]] != always for row in rows):
        rows.append({by[0]: always, amount: 0, "ns": 0, "tokens": 0})
    total = dict.fromkeys(by, "") | {by[0]: "sum", amount: whole}
    total |= {name: charge_algebra.total(frame, name) for name in ("ns", "tokens")}
    return pl.DataFrame([_row(row, by, amount, whole, counted=view == AMORTIZED) for row in [*rows, total]])


def columns(table: pl.DataFrame) -> dict[str, Any]:
    """How the columns of `table` are written."""
    number = st.column_config.NumberColumn
    return {
        "cost": amounts.column("cost", table["cost"], USD),
        "share": number(format="percent"),
        **{name: number(format="localized") for name in ("nano-dollars", "tokens")},
        **({"device-hours": amounts.hours(table["device-hours"])} if "device-hours" in table.columns else {}),
    }


def _row(row: Mapping[str, object], by: Sequence[str], amount: str, whole: int, *, counted: bool) -> dict[str, object]:
    nano = int(str(row[amount]))
    cells = {name.replace("-", " "): row[name] for name in by}
    cells |= {"cost": nano / 1e9, "share": nano / whole if whole else None, "nano-dollars": nano}
    if counted:
        cells |= {"device-hours": int(str(row["ns"])) / NS_PER_HOUR, "tokens": row["tokens"]}
    return cells


def by_day(frame: pl.DataFrame, key: str, view: str, *, monthly: bool) -> pl.DataFrame:
    """Dollars of each UTC day, or month, and value of `key`: columns day, bucket, usd, text."""
    day = pl.col("hour").dt.strftime("%Y-%m" if monthly else "%Y-%m-%d").alias("day")
    summed = frame.group_by(day, pl.col(key).alias("bucket")).agg(pl.col(AMOUNT[view]).sum().alias("nano")).sort("day")
    text = pl.col("nano").map_elements(format_usd, return_dtype=pl.String)
    return summed.filter(pl.col("nano") != 0).with_columns(usd=pl.col("nano") / 1e9, text=text)


def csv(bill: Bill) -> str:
    """Every charge as a row of CSV, amounts in whole nano-dollars, with what must stand beside them."""
    stamp = bill.stamp
    terms = {
        "currency": stamp.currency,
        "view": AMORTIZED,
        "verified": bill.verified,
        "price_book": stamp.book.text,
        "price_book_chosen": stamp.book.chosen,
        "example_prices": stamp.book.example,
    }
    frame = bill.frame.with_columns(pl.lit(value).alias(name) for name, value in terms.items())
    return escape.csv(frame)


def waste(frame: pl.DataFrame) -> pl.DataFrame:
    """Rollout time by what became of it; what was wasted by its cause, the rest as not wasted."""
    rollout = frame.filter(pl.col("bucket") == "rollout")
    return table(rollout.with_columns(CAUSE), ["cause", "fate"], AMORTIZED)


def idle(frame: pl.DataFrame) -> pl.DataFrame:
    """Time that was paid for and not used: whether it could have been lent, and where."""
    spare = frame.filter(pl.col("bucket").is_in(["idle", "unaccounted"]))
    unknown = pl.col("cause").fill_null("reported by no one")
    return table(spare.with_columns(unknown), ["bucket", "cause", "pool", "device-class"], AMORTIZED).drop("tokens")


def invoiced(frame: pl.DataFrame) -> pl.DataFrame:
    """What is billed beside device time: transfer by route, and energy, with their quantities.

    A quantity is NULL where it does not apply, and in the sum where no row has it.
    """
    beside = frame.filter(pl.col("kind") != "capacity").with_columns(pl.col("route").fill_null("none"))
    keys = ["kind", "route", "team"]
    quantities = [
        pl.when((pl.col("kind") == kind).any()).then(exact(name)).alias(name)
        for name, kind in (("bytes", "transfer"), ("energy_mw_ns", "energy"))
    ]
    sums = beside.group_by(keys).agg(quantities)
    whole = beside.select(*quantities).select(
        pl.lit("sum").alias("kind"), pl.lit("").alias("route"), pl.lit("").alias("team"), "bytes", "energy_mw_ns"
    )
    shown = table(beside, keys, AMORTIZED).drop("device-hours", "tokens")
    joined = shown.join(pl.concat([sums, whole]), keys, "left", maintain_order="left")
    gb, kwh = (pl.col("bytes") / 1e9).alias("GB"), (pl.col("energy_mw_ns") / 3.6e18).alias("kWh")
    return joined.with_columns(gb, kwh).drop("bytes", "energy_mw_ns")
