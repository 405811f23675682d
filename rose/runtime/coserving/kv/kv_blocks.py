"""Divides a KV pool into blocks. In each buffer, the slots of a block fill whole memory pieces. Slot 0 is padding, so
the block of slot 0 is never unmapped."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

BLOCKS_MIN = 32  #: Fewest blocks of a pool; larger pieces move faster, smaller blocks are free more often.


def block_slots(row_bytes: Iterable[int], granularity_bytes: int, slots: int) -> int:
    smallest = lcm(*(granularity_bytes // gcd(granularity_bytes, row) for row in row_bytes))
    doublings = max(1, slots // (smallest * BLOCKS_MIN)).bit_length() - 1
    return smallest << doublings


def runs(numbers: Iterable[int] | NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (begin, end) of each range of consecutive numbers; `end` is excluded. `numbers` must be distinct."""
    ordered = np.sort(np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers), dtype=np.int64))
    if not len(ordered):
        return []
    breaks = np.flatnonzero(np.diff(ordered) != 1)
    begins = [int(ordered[0]), *(int(ordered[index + 1]) for index in breaks)]
    ends = [*(int(ordered[index]) + 1 for index in breaks), int(ordered[-1]) + 1]
    return list(zip(begins, ends, strict=True))


@dataclass(slots=True)
class Blocks:
    slots: int
    block: int
    mapped: set[int] = field(default_factory=set)

    @property
    def count(self) -> int:
        return -(-(self.slots + 1) // self.block)

    @property
    def mapped_slots(self) -> int:
        return sum(self.size(number) for number in self.mapped)

    def size(self, number: int) -> int:
        begin, end = self.span(number)
        return end - begin

    def span(self, number: int) -> tuple[int, int]:
        """Return [begin, end) of the usable slots of a block."""
        return max(1, number * self.block), min(self.slots + 1, (number + 1) * self.block)

    def to_map(self, slots: int) -> list[int]:
        """Return which blocks to map, lowest first, so that `slots` slots (at most the whole pool) are usable."""
        chosen: list[int] = []
        missing = min(slots, self.slots) - self.mapped_slots
        for number in range(self.count):
            if missing <= 0:
                break
            if number not in self.mapped:
                chosen.append(number)
                missing -= self.size(number)
        return chosen

    def to_unmap(self, free: NDArray[np.int64], keep_slots: int = 0) -> list[int]:
        """Return mapped blocks whose slots are all `free`, highest first. At least `keep_slots` slots stay mapped."""
        per_block = np.bincount(free // self.block, minlength=self.count)
        left = self.mapped_slots
        chosen: list[int] = []
        for number in sorted(self.mapped, reverse=True):
            size = self.size(number)
            if number and per_block[number] == size and left - size >= keep_slots:
                chosen.append(number)
                left -= size
        return chosen

    def slots_within(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        spans = [np.arange(*self.span(number), dtype=np.int64) for number in sorted(numbers)]
        return np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)
