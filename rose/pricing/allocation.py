"""Where device time went, and the dollars that follow it, in integers that sum exactly.

Three views of the same dollars, never added together:

- *amortized*: each device's provisioned time at its price in the book, divided among the buckets by time. Time that no
  slice reports is the bucket `unaccounted`, priced like the rest. Sums to the fleet's cost.
- *fully loaded*: the amortized dollars with everything that is not work charged to what it is there for. Per device:
  sync and activation go to rollout (they exist for rollouts only), headroom goes to serving (it is kept for serving's
  sake), then idle is spread over serving, rollout and train in proportion to what they carry by then; a device that
  did none of the three gives its idle to what its pool is for. `unaccounted` stays a row of its own: nobody knows
  whose it is. Sums to the fleet's cost.
- *marginal*: what the borrow added to the bill (`rose.pricing.marginal`). Does not sum to the bill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import duckdb

from rose.events import BUCKETS
from rose.pricing.money import PricingError, charge_nano_usd, split
from rose.pricing.pricebook import PriceBook
from rose.pricing.query import rows, set_variables

UNACCOUNTED = "unaccounted"
#: The buckets of device time and, last, the provisioned time that no slice reports.
ALL_BUCKETS: tuple[str, ...] = (*BUCKETS, UNACCOUNTED)
#: The rows of the fully loaded view.
LOADED_BUCKETS: tuple[str, ...] = ("serving", "rollout", "train", UNACCOUNTED)

_WORK = ("serving", "rollout", "train")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCost:
    """One stay of a device in the fleet, [t0_ns, t1_ns) UTC: its time and dollars by bucket."""

    device_id: str
    pool: str
    device_class: str
    t0_ns: int
    t1_ns: int
    bucket_ns: Mapping[str, int]
    amortized_nano_usd: Mapping[str, int]
    fully_loaded_nano_usd: Mapping[str, int]

    def __post_init__(self) -> None:
        assert sum(self.bucket_ns.values()) == self.provisioned_ns
        assert sum(self.fully_loaded_nano_usd.values()) == self.cost_nano_usd

    @property
    def provisioned_ns(self) -> int:
        return self.t1_ns - self.t0_ns

    @property
    def cost_nano_usd(self) -> int:
        """What the device cost while it was provisioned."""
        return sum(self.amortized_nano_usd.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The whole fleet over a run. `period` is from the first device's joining to the last one's leaving."""

    devices: tuple[DeviceCost, ...]

    @property
    def period_ns(self) -> tuple[int, int]:
        return min(d.t0_ns for d in self.devices), max(d.t1_ns for d in self.devices)

    @property
    def cost_nano_usd(self) -> int:
        return sum(d.cost_nano_usd for d in self.devices)

    def of(self, *pools: str) -> Allocation:
        """The devices of some pools only."""
        return Allocation(devices=tuple(d for d in self.devices if d.pool in pools))

    def bucket_ns(self) -> dict[str, int]:
        return _sum(ALL_BUCKETS, (d.bucket_ns for d in self.devices))

    def amortized_nano_usd(self) -> dict[str, int]:
        return _sum(ALL_BUCKETS, (d.amortized_nano_usd for d in self.devices))

    def fully_loaded_nano_usd(self) -> dict[str, int]:
        return _sum(LOADED_BUCKETS, (d.fully_loaded_nano_usd for d in self.devices))


def allocate(connection: duckdb.DuckDBPyConnection, run_id: str, book: PriceBook) -> Allocation:
    """Device time and dollars of a run.

    Raises PricingError where the run provisioned no device time, or where slices overlap or lie outside their
    device's provisioned time (a nanosecond would be paid twice); PriceBookError where a device has no price.
    """
    changes_ns = book.change_times_ns()
    set_variables(connection, run_id=run_id, price_changes=changes_ns)
    _refuse_faults(rows(connection, "slice_faults"))
    provisioned = rows(connection, "provisioned")
    if not any(device["t1_ns"] > device["t0_ns"] for device in provisioned):
        raise PricingError(
            f"run {run_id} has no provisioned device time yet, so nothing can be priced; it needs a device that joined "
            "and reported at least one slice"
        )
    time: dict[tuple[str, int, int], Counter[str]] = {}
    for row in rows(connection, "slice_totals"):
        buckets = {bucket: int(row[f"{bucket}_ns"]) for bucket in BUCKETS}
        for segment, part in _divide(buckets, row, changes_ns):
            time.setdefault((row["device_id"], row["joined_ns"], segment), Counter()).update(part)
    devices = (
        _price(
            device,
            {
                segment: time.get((device["device_id"], device["t0_ns"], segment), Counter())
                for segment in range(len(changes_ns) + 1)
            },
            changes_ns,
            book,
        )
        for device in provisioned
        if device["t1_ns"] > device["t0_ns"]
    )
    return Allocation(devices=tuple(devices))


def fully_load(amortized_nano_usd: Mapping[str, int], pool: str) -> dict[str, int]:
    """Spread a device's amortized dollars onto its work, as the module describes. The sum stays the same."""
    of = amortized_nano_usd
    loaded = {
        "serving": of["serving"] + of["headroom"],
        "rollout": of["rollout"] + of["sync"] + of["activation"],
        "train": of["train"],
    }
    weights = loaded if any(loaded.values()) else {work: int(work == pool) for work in _WORK}
    for work, part in split(of["idle"], weights).items():
        loaded = loaded | {work: loaded[work] + part}
    return loaded | {UNACCOUNTED: of[UNACCOUNTED]}


def _price(
    device: Mapping[str, Any], time: Mapping[int, Mapping[str, int]], changes_ns: list[int], book: PriceBook
) -> DeviceCost:
    """Price one stay, stretch by stretch between price changes: dollars rounded once a stretch, then split by time."""
    t0_ns, t1_ns = int(device["t0_ns"]), int(device["t1_ns"])
    total_ns: Counter[str] = Counter(dict.fromkeys(ALL_BUCKETS, 0))
    nano_usd: Counter[str] = Counter(dict.fromkeys(ALL_BUCKETS, 0))
    edges_ns = [t0_ns, *(c for c in changes_ns if t0_ns < c < t1_ns), t1_ns]
    first = sum(c <= t0_ns for c in changes_ns)
    for segment, (from_ns, to_ns) in enumerate(pairwise(edges_ns), start=first):
        ((_, _, price),) = book.device_prices(device["device_class"], from_ns, to_ns)
        bucket_ns = {bucket: time[segment].get(bucket, 0) for bucket in BUCKETS}
        missing_ns = to_ns - from_ns - sum(bucket_ns.values())
        if missing_ns < 0:
            raise PricingError(
                f"device {device['device_id']}: slices hold {-missing_ns} ns more than the {to_ns - from_ns} ns it was "
                f"provisioned from {_utc(from_ns)}; check that the device did not join twice without leaving"
            )
        bucket_ns[UNACCOUNTED] = missing_ns
        total_ns.update(bucket_ns)
        nano_usd.update(split(charge_nano_usd(price.usd_per_hour, to_ns - from_ns), bucket_ns))
    return DeviceCost(
        device_id=device["device_id"],
        pool=device["pool"],
        device_class=device["device_class"],
        t0_ns=t0_ns,
        t1_ns=t1_ns,
        bucket_ns=dict(total_ns),
        amortized_nano_usd=dict(nano_usd),
        fully_loaded_nano_usd=fully_load(nano_usd, device["pool"]),
    )


def _divide(
    buckets: Mapping[str, int], row: Mapping[str, Any], changes_ns: list[int]
) -> Iterable[tuple[int, Mapping[str, int]]]:
    """A sum of whole slices as it is; a slice that straddles price changes in proportion to the time on each side."""
    if row["t0_ns"] is None:
        yield row["segment"], buckets
        return
    inside = [c for c in changes_ns if row["t0_ns"] < c < row["t1_ns"]]
    edges_ns = [row["t0_ns"], *inside, row["t1_ns"]]
    left = dict(buckets)
    for offset, (from_ns, to_ns) in enumerate(pairwise(edges_ns)):
        part = split(to_ns - from_ns, left)
        left = {bucket: left[bucket] - part[bucket] for bucket in left}
        yield row["segment"] + offset, part
    assert not any(left.values())


def _refuse_faults(faults: list[dict[str, Any]]) -> None:
    if faults:
        lines = [f"  {f['device_id']}: slice [{f['t0_ns']}, {f['t1_ns']}) ns {f['fault']}" for f in faults]
        raise PricingError(
            "device time cannot be priced, since some of it would be paid twice or was never provisioned:\n"
            + "\n".join(lines)
        )


def _sum(keys: Iterable[str], parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter(dict.fromkeys(keys, 0))
    for part in parts:
        total.update(part)
    return dict(total)


def _utc(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
