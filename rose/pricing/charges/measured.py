"""Measured time in hours that several runs shared: each is billed a part, but makes tokens during the whole hour."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import polars as pl

from rose.pricing.charges.pricing import Charges

DEVICE_KEY = ("fleet_run_id", "device_id", "pool", "device_class")  # Two fleets may use the same device id.


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedTime:
    """The time of one bucket of a lease, in an hour in which several runs shared the device."""

    fleet_run_id: str
    device_id: str
    pool: str
    device_class: str
    hour_ns: int
    lease_id: str | None
    bucket: str
    ns: int  # Billed time.
    cost_nano: int  # Billed cost.
    part: Fraction  # The run's part of the hour: above 0, at most 1.
    #: Share of the reported rollout time that fits the hardware's time; for idle time, the busiest run's rest.
    room: Fraction

    @property
    def measured_ns(self) -> Fraction:
        return self.ns / self.part

    @property
    def others_ns(self) -> Fraction:
        return self.measured_ns - self.ns

    @property
    def hardware_share(self) -> Fraction:
        """Return the hardware time for each billed nanosecond: at most an hour for all runs together."""
        return self.room / self.part


def shared(charges: Charges) -> tuple[SharedTime, ...]:
    if charges.shared.is_empty():
        return ()
    keys = (*DEVICE_KEY, "hardware_id", "hour")
    columns = (*keys, "lease_id", "bucket", "held_ns", "part_ns", "rollout_ns", "idle_ns", "busy_ns", "hardware_ns")
    capacity = charges.frame.filter(kind="capacity").join(charges.shared, on=keys)
    times = capacity.group_by(columns).agg(pl.col("ns", "cost_nano").sum()).sort(*keys, "lease_id", "bucket")
    times = times.with_columns(hour_ns=pl.col("hour").dt.epoch("ns"))
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
