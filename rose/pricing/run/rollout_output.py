"""What rollouts produced on each kind of device: tokens, billed dollars, and working time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import polars as pl

from rose.pricing.charges import Charges
from rose.pricing.charges.allocation import shared
from rose.pricing.money import NANO_USD_PER_USD

USEFUL = ("accepted", "rejected", "open")
_FATES = {"generated": (*USEFUL, "stale", "lost"), "useful": USEFUL, "stale": ("stale",)}
_EXACT = ("measured_ns", "hardware_ns", "usd", "unshared_usd")


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutOutput:
    rollout_ns: int
    measured_ns: Fraction  #: Time that the run measured; above the billed time if other runs held the device too.
    hardware_ns: Fraction  #: Hardware time for this run; less than `measured_ns` if several runs worked on the device.
    usd: Fraction
    unshared_usd: Fraction  #: Price of `hardware_ns` on a device that nobody shares.
    generated: int
    useful: int
    stale: int


def rollout_outputs(charges: Charges) -> dict[tuple[str, str], RolloutOutput]:
    tokens = (pl.col("tokens").filter(pl.col("fate").is_in(fates)).sum().alias(name) for name, fates in _FATES.items())
    rollout = charges.frame.filter((pl.col("kind") == "capacity") & (pl.col("bucket") == "rollout"))
    summed = rollout.group_by("pool", "device_class").agg(pl.col("ns", "cost_nano").sum(), *tokens)
    beyond: dict[tuple[str, str], list[Fraction]] = defaultdict(lambda: [Fraction(0)] * 3)
    for time in shared(charges):
        if time.bucket == "rollout":
            more = time.others_ns, (time.hardware_share - 1) * time.ns, (time.hardware_share - 1) * time.cost_nano
            key = time.pool, time.device_class
            beyond[key] = [one + other for one, other in zip(beyond[key], more, strict=True)]
    by_class = {}
    for pool, device_class, ns, nano, *counts in summed.sort("pool", "device_class").iter_rows():
        others_ns, hardware_ns, hardware_nano = beyond[pool, device_class]
        by_class[pool, device_class] = RolloutOutput(
            rollout_ns=ns,
            measured_ns=ns + others_ns,
            hardware_ns=ns + hardware_ns,
            usd=Fraction(nano, NANO_USD_PER_USD),
            unshared_usd=(nano + hardware_nano) / NANO_USD_PER_USD,
            **dict(zip(_FATES, counts, strict=True)),
        )
    return by_class


def together(parts: Sequence[RolloutOutput]) -> RolloutOutput:
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in RolloutOutput.__slots__}
    for name in _EXACT:
        sums[name] = Fraction(sums[name])
    return RolloutOutput(**sums)
