"""Chooses the encoding that brings an array to a receiver soonest."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rose.runtime.transfer.codec.header import Encoding

#: Nanoseconds of a core to encode, check and decode: for each element, for each of its bytes, and for each change.
_COST_NS: dict[Encoding, tuple[float, float, float]] = {
    "dense": (0.0, 0.2, 0.0),
    "fast": (0.4, 0.0, 20.0),
    "small": (2.0, 0.0, 35.0),
    "planes": (0.0, 2.0, 0.0),
}
_MOST = 0.6  # Above this share of changed elements only `planes` is worth its time.
#: The smallest encoding within this factor of the quickest is chosen: a link has other users.
_ABOUT_AS_QUICK = 1.15


@dataclass(frozen=True, slots=True)
class Link:
    """The rate to the receivers, bytes/s, and the cores at each end."""

    bytes_per_s: float
    cores: int

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0 or self.cores < 1:
            raise ValueError(f"a link of {self.bytes_per_s} bytes a second and {self.cores} cores: both are above 0")


LINK = Link(125e6, len(os.sched_getaffinity(0)))  # Until a receiver has measured it: 1 Gbit/s.


def deltas(changed_share: float) -> tuple[Encoding, ...]:
    return ("fast", "small", "planes") if changed_share <= _MOST else ("planes",)


def duration_s(
    encoding: Encoding, size_bytes: float, elements: int, changed: int, item_bytes: int, link: Link
) -> float:
    element_ns, byte_ns, change_ns = _COST_NS[encoding]
    work_ns = elements * (element_ns + byte_ns * item_bytes) + changed * change_ns
    return size_bytes / link.bytes_per_s + work_ns / 1e9 / link.cores


def may_be_chosen(
    encoding: Encoding, sizes: Mapping[Encoding, int], elements: int, changed: int, item_bytes: int, link: Link
) -> bool:
    work_s = duration_s(encoding, 0, elements, changed, item_bytes, link)
    others_s = (duration_s(e, size, elements, changed, item_bytes, link) for e, size in sizes.items())
    return work_s <= _ABOUT_AS_QUICK * min(others_s)


def quickest(sizes: Mapping[Encoding, int], elements: int, changed: int, item_bytes: int, link: Link) -> Encoding:
    taken_s = {e: duration_s(e, size, elements, changed, item_bytes, link) for e, size in sizes.items()}
    most_s = _ABOUT_AS_QUICK * min(taken_s.values())
    return min((e for e in sizes if taken_s[e] <= most_s), key=lambda e: (sizes[e], taken_s[e]))
