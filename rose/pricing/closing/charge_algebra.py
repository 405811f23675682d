"""Sums and differences of charges, in exact integers."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from rose.pricing.charges.allocation import ALL_BUCKETS
from rose.pricing.charges.pricing import AMOUNTS, COLUMNS, DIMENSIONS, REFERENCES
from rose.pricing.money import PricingError
from rose.pricing.period import Period, naive

UNALLOCATED = "unallocated"
_PLACES = {bucket: place for place, bucket in enumerate((*ALL_BUCKETS, "transfer", "energy"))}
BY: Mapping[str, str] = {  # Column of each dimension beside times and tags; `work` is of the fully loaded view.
    "team": "team",
    "run": "run_id",
    "device-class": "device_class",
    "pool": "pool",
    "device": "device_id",
    "hardware": "hardware_id",
    "bucket": "bucket",
    "task": "task",
    "version": "policy_version",
    "lease": "lease_id",
    "commitment": "commitment",
    "kind": "kind",
    "fate": "fate",
    "cause": "cause",
    "route": "route",
    "work": "work",
}


def in_period(period: Period) -> pl.Expr:
    return pl.col("hour").is_between(naive(period.from_ns), naive(period.to_ns), closed="left")


def add(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the sum of the frames' charges, in canonical order. Rows whose amounts are all 0 are left out."""
    joined = pl.concat([frame.select(COLUMNS) for frame in frames])
    summed = joined.group_by(DIMENSIONS, maintain_order=True).agg(
        *(pl.col(name).sum() for name in AMOUNTS), *(pl.col(name).first() for name in REFERENCES)
    )
    return canonical(summed.filter(pl.any_horizontal(pl.col(name) != 0 for name in AMOUNTS)))


def difference(now: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    return add([now, before.with_columns(-pl.col(name) for name in AMOUNTS)])


def canonical(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the charges in the order in which pricing lists them. The same rows then give the same bytes."""
    place = pl.col("bucket").replace_strict(_PLACES, default=len(_PLACES), return_dtype=pl.Int64)
    before = ("hour", "fleet_run_id", "provenance", "device_id", "lease_id")
    own = (pl.col("run_id") != pl.col("fleet_run_id"), pl.col("run_id"))
    after = ("policy_version", "task", "fate", "cause", "route")
    # Other dimensions differ only where a correction moved a row to another team, class or commitment.
    return frame.sort(*before, place, *own, *after, *DIMENSIONS, nulls_last=False)


def drill(frame: pl.DataFrame, by: Sequence[str], amount: str = "cost_nano") -> list[dict[str, Any]]:
    """Return sums by dimensions, largest first. Null becomes "unallocated". Raises PricingError for unknown names."""
    known = [name for name, column in BY.items() if column in frame.columns]
    for name in by:
        if name not in known:
            raise PricingError(f"charges cannot be shown by {name!r}; give one of {', '.join(known)}")
    keys = [pl.col(BY[name]).cast(pl.String).fill_null(UNALLOCATED).alias(name) for name in by]
    sums = [pl.col(name).sum().alias(f"sum_{name}") for name in (amount, "ns", "tokens")]
    grouped = frame.group_by(keys).agg(sums) if by else frame.select(sums)
    ordered = grouped.sort([f"sum_{amount}", *by], descending=[True, *(False for _ in by)])
    return [{name.removeprefix("sum_"): value for name, value in row.items()} for row in ordered.iter_rows(named=True)]
