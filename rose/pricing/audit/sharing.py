"""Whose a device is in one hour: its time among those who hold it, worked out anew from when each was there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from rose.pricing.charges import Stay
from rose.pricing.money import NS_PER_HOUR

#: A run, what it calls the device, and the pool and class it has it in.
Holder = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Held:
    """What one holder has of an hour: the time for which it held the device, its part of that, and with whom."""

    held_ns: int
    ns: int
    others: tuple[Holder, ...]


def held(stays: Iterable[Stay], hour_ns: int) -> dict[Holder, Held]:
    """By holder, the hour that begins at `hour_ns` of one device; `stays` are all that are of it.

    Time that several hold at once is cut into equal parts, and the nanoseconds that are left go to the first by name.
    """
    spans = [
        (
            (stay.run_id, stay.device_id, stay.pool, stay.device_class),
            max(stay.t0_ns, hour_ns),
            min(stay.t1_ns, hour_ns + NS_PER_HOUR),
        )
        for stay in stays
        if stay.t0_ns < hour_ns + NS_PER_HOUR and stay.t1_ns > hour_ns
    ]
    whole, own = ({holder: 0 for holder, *_ in spans} for _ in range(2))
    met: dict[Holder, set[Holder]] = {holder: set() for holder, *_ in spans}
    for from_ns, to_ns in pairwise(sorted({ns for _, *times in spans for ns in times})):
        holders = sorted(holder for holder, t0_ns, t1_ns in spans if t0_ns <= from_ns and t1_ns >= to_ns)
        for place, holder in enumerate(holders):
            part_ns, left_ns = divmod(to_ns - from_ns, len(holders))
            whole[holder] += to_ns - from_ns
            own[holder] += part_ns + (place < left_ns)
            met[holder].update(holders)
    return {holder: Held(whole[holder], own[holder], tuple(sorted(met[holder] - {holder}))) for holder in sorted(whole)}
