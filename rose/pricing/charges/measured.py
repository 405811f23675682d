"""What a run measured of hours that it shared: quantities of work rest on that, and money on its part of the hours.

Charges have the part alone. A run that works all of an hour in which another run holds the device as well is billed
half of it, and made its tokens in the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import polars as pl

from rose.pricing.charges.pricing import Charges

#: What tells a device from others: two fleets may call theirs alike.
DEVICE_KEY = ("fleet_run_id", "device_id", "pool", "device_class")


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedTime:
    """One lease's time in one bucket, in an hour in which others held the device as well."""

    fleet_run_id: str
    device_id: str
    pool: str
    device_class: str
    #: Begin of the hour, UTC.
    hour_ns: int
    lease_id: str | None
    bucket: str
    #: What is billed of it, and the run's part of the hour, above 0 and at most 1.
    ns: int
    cost_nano: int
    part: Fraction
    #: Share of the rollout time that all report of the hour which the hardware had time for; of idle time, what it had
    #: left by the one who worked longest.
    room: Fraction

    @property
    def measured_ns(self) -> Fraction:
        """What the run reported, but for what the division of the hour rounded."""
        return self.ns / self.part

    @property
    def others_ns(self) -> Fraction:
        """What of it is billed to the others."""
        return self.measured_ns - self.ns

    @property
    def hardware_share(self) -> Fraction:
        """Time of the hardware for each nanosecond billed.

        What was measured, but never more of all runs together than the hour has: two that work at once have half each,
        and so have two that are idle at once.
        """
        return self.room / self.part


def shared(charges: Charges) -> tuple[SharedTime, ...]:
    """All device time in shared hours, in order; empty where no device was shared."""
    if charges.shared.is_empty():
        return ()
    keys = (*DEVICE_KEY, "hardware_id", "hour")
    times = (
        charges.frame.filter(kind="capacity")
        .join(charges.shared, on=keys)
        .group_by(*keys, "lease_id", "bucket", "held_ns", "part_ns", "rollout_ns", "idle_ns", "busy_ns", "hardware_ns")
        .agg(pl.col("ns", "cost_nano").sum())
        .sort(*keys, "lease_id", "bucket")
        .with_columns(hour_ns=pl.col("hour").dt.epoch("ns"))
    )
    return tuple(
        SharedTime(
            **{name: row[name] for name in (*DEVICE_KEY, "hour_ns", "lease_id", "bucket", "ns", "cost_nano")},
            part=Fraction(row["part_ns"], row["held_ns"]),
            room=_room(row),
        )
        for row in times.iter_rows(named=True)
    )


def _room(row: Mapping[str, Any]) -> Fraction:
    if row["bucket"] == "idle":
        left_ns = max(row["hardware_ns"] - row["busy_ns"], 0)
        return Fraction(left_ns, max(left_ns, row["idle_ns"], 1))
    return Fraction(row["hardware_ns"], max(row["hardware_ns"], row["rollout_ns"]))
