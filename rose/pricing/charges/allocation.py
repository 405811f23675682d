"""A run's device time and dollars on each device, in two views that are never added.
- *amortized*: provisioned time at its price, divided among buckets by time. Time that no slice covers is
  `unaccounted`. Weight syncs are `transfer`. Metered energy that the device price does not include is `energy`.
- *fully loaded*: the same dollars, moved to the work that they serve (`fully_load`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import polars as pl

from rose.events import BUCKETS
from rose.pricing.charges.pricing import WORK, Charges

UNACCOUNTED = "unaccounted"
TIME_BUCKETS: tuple[str, ...] = (*BUCKETS, UNACCOUNTED)
ALL_BUCKETS: tuple[str, ...] = (*TIME_BUCKETS, "transfer", "energy")
ROLLOUT_BUCKETS = ("rollout", "sync", "activation", "transfer")  #: Rollout time, and all that exists for rollouts.

_Device = tuple[str, str, str, str]  # Fleet's run, device id, pool and class: two fleets may use the same device id.


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCost:
    fleet_run_id: str
    device_id: str
    pool: str
    device_class: str
    t0_ns: int
    t1_ns: int
    bucket_ns: Mapping[str, int]
    amortized_nano_usd: Mapping[str, int]
    fully_loaded_nano_usd: Mapping[str, int]
    stays_ns: tuple[tuple[int, int], ...] = ()  # Spans [t0_ns, t1_ns) UTC of provisioning, in order.

    def __post_init__(self) -> None:
        assert 0 <= sum(self.bucket_ns.values()) <= self.t1_ns - self.t0_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    devices: tuple[DeviceCost, ...]
    shared: tuple[SharedTime, ...] = ()  # Hours of `devices` in which other runs held them too.

    @property
    def period_ns(self) -> tuple[int, int]:
        return min(d.t0_ns for d in self.devices), max(d.t1_ns for d in self.devices)

    @property
    def cost_nano_usd(self) -> int:
        return sum(self.amortized_nano_usd().values())

    def in_pools(self, *pools: str) -> Allocation:
        return Allocation(
            devices=tuple(d for d in self.devices if d.pool in pools),
            shared=tuple(time for time in self.shared if time.pool in pools),
        )

    def bucket_ns(self) -> dict[str, int]:
        return _sum(TIME_BUCKETS, (d.bucket_ns for d in self.devices))

    def measured_ns(self) -> dict[str, int]:
        """Return nanoseconds by bucket, including shared time that is billed to other runs. Figures about output use
        this sum, and not `bucket_ns`."""
        others_ns = defaultdict[str, Fraction](Fraction)
        for time in self.shared:
            others_ns[time.bucket] += time.others_ns
        return {bucket: ns + round(others_ns[bucket]) for bucket, ns in self.bucket_ns().items()}

    def amortized_nano_usd(self) -> dict[str, int]:
        return _sum(ALL_BUCKETS, (d.amortized_nano_usd for d in self.devices))

    def fully_loaded_nano_usd(self) -> dict[str, int]:
        return _sum(WORK, (d.fully_loaded_nano_usd for d in self.devices))


def allocate(charges: Charges) -> Allocation:
    """Return a run's device time and dollars on each device. A device that never joined has no time."""
    bucket_ns, amortized, loaded = (defaultdict[_Device, Counter[str]](Counter) for _ in range(3))
    summed = charges.frame.group_by(*DEVICE_KEY, "bucket").agg(pl.col("ns", "cost_nano").sum())
    for fleet, device_id, pool, device_class, bucket, ns, nano in summed.iter_rows():
        bucket_ns[fleet, device_id, pool, device_class][bucket] += ns
        amortized[fleet, device_id, pool, device_class][bucket] += nano
    worked = charges.fully_loaded().group_by(*DEVICE_KEY, "work").agg(pl.col("loaded_nano").sum())
    for fleet, device_id, pool, device_class, work, nano in worked.iter_rows():
        loaded[fleet, device_id, pool, device_class][work] += nano
    stays: dict[_Device, list[tuple[int, int]]] = {}
    for stay in charges.stays:
        stays.setdefault(stay.holder, []).append((stay.t0_ns, stay.t1_ns))
    devices = []
    for device in sorted(stays.keys() | amortized.keys()):
        tenures = sorted(stays.get(device, ()))
        devices.append(
            DeviceCost(
                **dict(zip(DEVICE_KEY, device, strict=True)),
                t0_ns=tenures[0][0] if tenures else charges.from_ns,
                t1_ns=max(t1_ns for _, t1_ns in tenures) if tenures else charges.from_ns,
                bucket_ns={bucket: bucket_ns[device][bucket] for bucket in TIME_BUCKETS},
                amortized_nano_usd={bucket: amortized[device][bucket] for bucket in ALL_BUCKETS},
                fully_loaded_nano_usd={work: loaded[device][work] for work in WORK},
                stays_ns=tuple(tenures),
            )
        )
    return Allocation(devices=tuple(devices), shared=shared(charges))


def _sum(keys: Iterable[str], parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter(dict.fromkeys(keys, 0))
    for part in parts:
        total.update(part)
    return dict(total)


DEVICE_KEY = ("fleet_run_id", "device_id", "pool", "device_class")  # Two fleets may use the same device id.


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedTime:
    """A run's time on a device that several runs shared: the time of one hour, one lease and one bucket."""

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
    #: Rollout: hardware time / reported time. Idle: time that the busiest run left / reported time. At most 1.
    room: Fraction

    @property
    def measured_ns(self) -> Fraction:
        return self.ns / self.part

    @property
    def others_ns(self) -> Fraction:
        return self.measured_ns - self.ns

    @property
    def hardware_share(self) -> Fraction:
        """Return hardware time / billed time. The hardware time of all runs in an hour adds up to at most one hour."""
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
