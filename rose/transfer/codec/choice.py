"""Chooses the encoding with which an array reaches a receiver soonest."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from rose.transfer.codec.header import Encoding

DELTAS: tuple[Encoding, ...] = ("fast", "small", "planes")
#: CPU nanoseconds to encode, check and decode on an AMD EPYC with AVX2: per array, per element, per byte of an element,
#: per change, and per byte sent.
_COST_NS: dict[Encoding, tuple[float, float, float, float, float]] = {
    "dense": (0.0, 0.0, 0.2, 0.0, 0.0),
    "fast": (0.0, 0.4, 0.0, 20.0, 0.0),
    "small": (40e3, 0.8, 0.0, 35.0, 0.0),
    "planes": (20e3, 0.0, 1.0, 0.0, 8.0),
}
_MOST = 0.6  # If more than this share of elements changed, `fast` and `small` are not worth their time.
#: Among the encodings within this factor of the quickest one, the smallest is chosen, since a link has other users.
_ABOUT_AS_QUICK = 1.2


@dataclass(frozen=True, slots=True)
class Amount:
    elements: int
    changed: float
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Link:
    """A link's rate to the receivers in bytes/s, and the number of cores at each end."""

    bytes_per_s: float
    cores: int

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0 or self.cores < 1:
            raise ValueError(f"a link of {self.bytes_per_s} bytes/s and {self.cores} cores: both must be above 0")


LINK = Link(125e6, len(os.sched_getaffinity(0)))  # Until a receiver has measured it: 1 Gbit/s.


def estimates(amount: Amount) -> dict[Encoding, float]:
    """Return sizes in bytes: for `dense` the array's own size, for `fast` an estimate for its encoded changes."""
    bits = 3 + math.log2(amount.elements / amount.changed)
    return {"dense": amount.elements * amount.item_bytes, "fast": amount.changed * bits / 8}


def duration_s(encoding: Encoding, size_bytes: float, amount: Amount, link: Link) -> float:
    call_ns, element_ns, byte_ns, change_ns, sent_ns = _COST_NS[encoding]
    work_ns = call_ns + amount.elements * (element_ns + byte_ns * amount.item_bytes) + amount.changed * change_ns
    work_ns += size_bytes * sent_ns
    return size_bytes / link.bytes_per_s + work_ns / 1e9 / link.cores


def may_be_chosen(
    encoding: Encoding, sizes: Mapping[Encoding, float], amount: Amount, link: Link, sampled: float = 0
) -> bool:
    """Return whether a trial of `encoding` is useful: an empty output would be quick enough. `sizes` has the known
    sizes. The time of the trial is added. It is `sampled` times the time for the whole array."""
    if encoding != "planes" and amount.changed > _MOST * amount.elements:
        return False
    return duration_s(encoding, 0, amount, link) * (1 + sampled) <= _longest_s(sizes, amount, link)


def quickest(sizes: Mapping[Encoding, float], amount: Amount, link: Link) -> Encoding:
    longest_s = _longest_s(sizes, amount, link)
    taken_s = {e: duration_s(e, size, amount, link) for e, size in sizes.items()}
    return min((e for e in sizes if taken_s[e] <= longest_s), key=lambda e: (sizes[e], taken_s[e]))


def _longest_s(sizes: Mapping[Encoding, float], amount: Amount, link: Link) -> float:
    taken_s = {e: duration_s(e, size, amount, link) for e, size in sizes.items()}
    return min(_ABOUT_AS_QUICK * min(taken_s.values()), taken_s.get("dense", math.inf))
