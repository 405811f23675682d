"""Boxes of the elements of a tensor, and their intersections."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rose.transfer.errors import TransferError

_AXES_MAX = 4  # A tensor is cut along at most this many axes.


@dataclass(frozen=True, order=True, slots=True)
class Region:
    """The elements with `start <= index < stop` on every axis. Raises TransferError if the bounds are wrong."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop):
            raise TransferError(f"region from {self.start} to {self.stop}: both need the same number of axes")
        if any(not 0 <= start <= stop for start, stop in zip(self.start, self.stop, strict=True)):
            raise TransferError(f"region from {self.start} to {self.stop}: expected 0 <= start <= stop on every axis")

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Region:
        return cls((0,) * len(shape), shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(itertools.starmap(slice, zip(self.start, self.stop, strict=True)))

    def intersect(self, other: Region) -> Region | None:
        self._check_axes(other)
        start, stop = tuple(map(max, self.start, other.start)), tuple(map(min, self.stop, other.stop))
        return Region(start, stop) if all(map(operator.lt, start, stop)) else None

    def contains(self, other: Region) -> bool:
        self._check_axes(other)
        return all(map(operator.le, self.start, other.start)) and all(map(operator.le, other.stop, self.stop))

    def within(self, outer: Region) -> Region:
        if not outer.contains(self):
            raise TransferError(f"region {self} is not inside of {outer}")
        start, stop = (tuple(map(operator.sub, corner, outer.start)) for corner in (self.start, self.stop))
        return Region(start, stop)

    def between(self, axis: int, start: int, stop: int) -> Region | None:
        low, high = max(start, self.start[axis]), min(stop, self.stop[axis])
        return None if low >= high else Region(_put(self.start, axis, low), _put(self.stop, axis, high))

    def __str__(self) -> str:
        return f"[{', '.join(f'{start}:{stop}' for start, stop in zip(self.start, self.stop, strict=True))}]"

    def _check_axes(self, other: Region) -> None:
        if len(self.start) != len(other.start):
            raise TransferError(f"regions {self} and {other} have different numbers of axes")


Regions = Mapping[str, Region]


def tiles(whole: Region, regions: Collection[Region]) -> bool:
    axes = [
        axis
        for axis, ends in enumerate(zip(whole.start, whole.stop, strict=True))
        if any((region.start[axis], region.stop[axis]) != ends for region in regions)
    ]
    if len(axes) > _AXES_MAX or not whole.elements:
        return not whole.elements
    left: Counter[tuple[int, ...]] = Counter()
    for box, sign in [(whole, -1), *((region, 1) for region in regions if region.elements)]:
        for ends in itertools.product((0, 1), repeat=len(axes)):
            corner = tuple((box.start, box.stop)[end][axis] for end, axis in zip(ends, axes, strict=True))
            left[corner] += sign * (-1) ** sum(ends)
    return not any(left.values())


def overlapping(regions: Iterable[Region]) -> tuple[Region, Region] | None:
    boxes = list(regions)
    axes = range(len(boxes[0].start)) if boxes else ()
    # Sweep along the axis with the most starts, where few boxes are open at a time.
    axis = max(axes, key=lambda a: len({box.start[a] for box in boxes}), default=None)
    if axis is None:
        return (boxes[0], boxes[1]) if len(boxes) > 1 else None
    open_boxes: list[Region] = []
    for box in sorted(boxes, key=lambda box: box.start[axis]):
        open_boxes = [other for other in open_boxes if other.stop[axis] > box.start[axis]]
        for other in open_boxes:
            if other.intersect(box):
                return other, box
        open_boxes.append(box)
    return None


def _put(index: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*index[:axis], value, *index[axis + 1 :])
