"""Charges of rollouts by what they were for: rows in whole nano-dollars that add up to the total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import polars as pl

from dashboard.spending import ROLLOUT_BUCKETS, Rows
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.money import NS_PER_HOUR

#: What rows can be of: as the address has it, in words, and the column of the charges.
GROUPS: Mapping[str, tuple[str, str]] = {
    "team": ("team", "team"),
    "run": ("run", "run_id"),
    "task": ("task", "task"),
    "model": ("model", "model"),
    "policy-version": ("policy version", "policy_version"),
    "device-class": ("device class", "device_class"),
    "pool": ("pool", "pool"),
}
#: Where rollouts were made, and what is billed beside device time.
BORROWED, DEDICATED, TRANSFER = "borrowed devices", "dedicated devices", "weight transfer"
PLACES = (BORROWED, DEDICATED, TRANSFER)
_MILLION = 10**6
_USEFUL = ("accepted", "rejected", "open")
_WORK = pl.col("bucket").is_in(ROLLOUT_BUCKETS)
_PLACE = (
    pl.when(pl.col("kind") != "capacity")
    .then(pl.lit(TRANSFER))
    .when(pl.col("pool") == "serving")
    .then(pl.lit(BORROWED))
    .otherwise(pl.lit(DEDICATED))
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A row. `ns` is device time of rollouts; `tokens` the useful ones, in whose price all others are."""

    key: str
    nano: int
    ns: int
    tokens: int
    #: By one of PLACES; sums to `nano`.
    places: Mapping[str, int]

    @property
    def per_device_hour(self) -> Fraction | None:
        """Nano-dollars of device time for an hour of it; None without any."""
        time_nano = self.nano - self.places.get(TRANSFER, 0)
        return Fraction(time_nano * NS_PER_HOUR, self.ns) if self.ns else None

    @property
    def per_million(self) -> Fraction | None:
        """Nano-dollars for a million useful tokens; None without any."""
        return Fraction(self.nano * _MILLION, self.tokens) if self.tokens else None


def of_run(rows: Rows, run_id: str) -> Rows:
    """The charges of one run: of a fleet's with those of the RL runs on it."""
    own = pl.any_horizontal(pl.col("run_id", "fleet_run_id") == run_id)
    return Rows.of(rows.frame.filter(own), rows.period)


def with_models(frame: pl.DataFrame, models: Mapping[str, str]) -> pl.DataFrame:
    """The charges with a column `model`, by the run that their devices are of."""
    known = pl.DataFrame(
        {"fleet_run_id": list(models), "model": list(models.values())},
        schema={"fleet_run_id": pl.String, "model": pl.String},
    )
    return frame.join(known, "fleet_run_id", "left", maintain_order="left")


def grouped(frame: pl.DataFrame, by: str) -> list[Group]:
    """The rows of charges with `amount_nano`, the dearest first; what has no value is `unallocated`.

    Their amounts sum to those of the charges, which is looked at here.
    """
    key = pl.col(GROUPS[by][1]).cast(pl.String).fill_null(UNALLOCATED).alias("key")
    summed = frame.group_by(key, _PLACE.alias("place")).agg(
        pl.col("amount_nano").sum().alias("nano"),
        pl.col("ns").filter(_WORK, pl.col("kind") == "capacity").sum(),
        pl.col("tokens").filter(pl.col("bucket") == "rollout", pl.col("fate").is_in(_USEFUL)).sum(),
    )
    parts: dict[str, list[tuple[str, int, int, int]]] = {}
    for name, place, nano, ns, tokens in summed.sort("key", "place").iter_rows():
        parts.setdefault(name, []).append((place, nano, ns, tokens))
    rows = [together(name, own) for name, own in parts.items()]
    assert sum(row.nano for row in rows) == int(frame["amount_nano"].sum())
    return sorted(rows, key=lambda row: (-row.nano, row.key))


def together(key: str, parts: Sequence[tuple[str, int, int, int]]) -> Group:
    """A row from its parts: place, nano-dollars, nanoseconds, tokens."""
    return Group(
        key=key,
        nano=sum(part[1] for part in parts),
        ns=sum(part[2] for part in parts),
        tokens=sum(part[3] for part in parts),
        places={part[0]: part[1] for part in parts},
    )


def total(rows: Sequence[Group]) -> Group:
    """All rows as one."""
    places = {place: sum(row.places.get(place, 0) for row in rows) for place in PLACES}
    return Group(
        key="total",
        nano=sum(row.nano for row in rows),
        ns=sum(row.ns for row in rows),
        tokens=sum(row.tokens for row in rows),
        places=places,
    )


def in_row(frame: pl.DataFrame, by: str, key: str) -> pl.DataFrame:
    """The charges of one row."""
    return frame.filter(pl.col(GROUPS[by][1]).cast(pl.String).fill_null(UNALLOCATED) == key)
