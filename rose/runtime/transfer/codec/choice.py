"""Chooses the encoding with which an array reaches a receiver soonest."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rose.runtime.transfer.codec.header import Encoding

#: Nanoseconds that one core takes to encode, check and decode. One number is per element, one per byte of an element,
#: and one per change.
_COST_NS: dict[Encoding, tuple[float, float, float]] = {
    "dense": (0.0, 0.2, 0.0),
    "fast": (0.4, 0.0, 20.0),
    "small": (2.0, 0.0, 35.0),
    "planes": (0.0, 2.0, 0.0),
}
_MOST = 0.6  # If more than this share of elements changed, only `planes` is worth its time.
#: Among the encodings within this factor of the quickest one, the smallest is chosen, since a link has other users.
_ABOUT_AS_QUICK = 1.15


@dataclass(frozen=True, slots=True)
class Link:
    """A link's rate to the receivers in bytes/s, and the number of cores at each end."""

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
