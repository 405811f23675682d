"""What devices made of rollout time: the tokens, what is billed for the time, and how long the work took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import polars as pl

from rose.pricing.charges import Charges
from rose.pricing.charges.measured import shared
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_S

_WASTED = ("stale", "lost")
_USEFUL = ("accepted", "rejected", "open")


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """What some devices made: rollout time, its amortized dollars, and tokens."""

    #: What is billed of it.
    rollout_ns: int
    #: What the run measured, more where others held the device as well.
    measured_ns: Fraction
    #: What that is of the hardware's own time, less where others worked on it at once.
    hardware_ns: Fraction
    usd: Fraction
    #: What `hardware_ns` would cost a run that shares with none.
    unshared_usd: Fraction
    generated: int
    useful: int
    stale: int

    @property
    def wasted_share(self) -> Fraction | None:
        return 1 - Fraction(self.useful, self.generated) if self.generated else None

    @property
    def tokens_per_s(self) -> Fraction | None:
        """tau: tokens, useful or not, for each second of rollout work."""
        return self.generated * NS_PER_S / self.measured_ns if self.measured_ns else None


def made(charges: Charges) -> dict[tuple[str, str], Made]:
    """By (pool, device class), the rollout time of a run's charges."""
    rollout = charges.frame.filter((pl.col("kind") == "capacity") & (pl.col("bucket") == "rollout"))
    summed = rollout.group_by("pool", "device_class", "fate").agg(pl.col("ns", "cost_nano", "tokens").sum())
    fates: dict[tuple[str, str], dict[str, tuple[int, int, int]]] = {}
    for pool, device_class, fate, ns, nano, tokens in summed.iter_rows():
        fates.setdefault((pool, device_class), {})[fate] = (ns, nano, tokens)
    beyond: dict[tuple[str, str], list[Fraction]] = {key: [Fraction(0)] * 3 for key in fates}
    for time in shared(charges):
        if time.bucket == "rollout":
            more = time.others_ns, (time.hardware_share - 1) * time.ns, (time.hardware_share - 1) * time.cost_nano
            sums = beyond[time.pool, time.device_class]
            sums[:] = [one + other for one, other in zip(sums, more, strict=True)]
    return {
        key: Made(
            rollout_ns=(ns := sum(ns for ns, _, _ in by_fate.values())),
            measured_ns=ns + beyond[key][0],
            hardware_ns=ns + beyond[key][1],
            usd=Fraction(nano := sum(nano for _, nano, _ in by_fate.values()), NANO_USD_PER_USD),
            unshared_usd=(nano + beyond[key][2]) / NANO_USD_PER_USD,
            generated=sum(by_fate[fate][2] for fate in (*_USEFUL, *_WASTED) if fate in by_fate),
            useful=sum(by_fate[fate][2] for fate in _USEFUL if fate in by_fate),
            stale=by_fate.get("stale", (0, 0, 0))[2],
        )
        for key, by_fate in sorted(fates.items())
    }


def together(parts: Sequence[Made]) -> Made:
    """The sum of several."""
    return Made(
        rollout_ns=sum(part.rollout_ns for part in parts),
        **{
            name: sum((getattr(part, name) for part in parts), Fraction(0))
            for name in ("measured_ns", "hardware_ns", "usd", "unshared_usd")
        },
        generated=sum(part.generated for part in parts),
        useful=sum(part.useful for part in parts),
        stale=sum(part.stale for part in parts),
    )
