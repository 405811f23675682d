"""The charges of `rose.pricing` and those of `naive` in one form, so that every row can be held against the other's."""

from __future__ import annotations

import pandas as pd
import polars as pl

from benchmarks.pricing.naive import AMOUNTS, KEY

_TEXTS = ("lease_id", "task", "fate", "cause", "route")
#: What the smallest thing is that money is divided to: a bucket of a device's hour.
BUCKET = ("run_id", "device_id", "hour", "bucket")


def of_charges(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame of `Charges`: hours as numbers, and "" or -1 for what is missing."""
    made = frame.with_columns(
        pl.col("hour").dt.epoch("s") // 3600,
        pl.col("policy_version").fill_null(-1),
        *(pl.col(name).fill_null("") for name in _TEXTS),
    )
    return _sorted(made)


def of_naive(frame: pd.DataFrame) -> pl.DataFrame:
    """What `naive.price` returns."""
    return _sorted(pl.DataFrame({name: frame[name].tolist() for name in frame.columns}))


def differences(one: pl.DataFrame, other: pl.DataFrame) -> list[str]:
    """What the two do not agree in, at most ten of it in words; empty if every row is the same."""
    found = []
    for by in (["kind"], [*BUCKET], [*KEY]):
        sums = [each.group_by(by).agg(pl.col(name).sum() for name in AMOUNTS) for each in (one, other)]
        joined = sums[0].join(sums[1], on=by, how="full", suffix="_other", coalesce=True)
        apart = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_other")) for name in AMOUNTS)
        found += [str(row) for row in joined.filter(apart).sort(by).head(10).to_dicts()]
    return found[:10]


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    types = dict.fromkeys(KEY, pl.String) | dict.fromkeys(("hour", "policy_version", *AMOUNTS), pl.Int64)
    made = frame.select(*KEY, *AMOUNTS).cast(types)  # type: ignore[arg-type]
    return made.filter(pl.any_horizontal(pl.col(name) != 0 for name in AMOUNTS)).sort(KEY)
