"""Which parts of a KV pool can be given back, and which to bring in: arithmetic on slots, blocks and bytes.

A block is the fewest slots of a token that are whole pieces of memory in each buffer of the pool, so that no piece
holds slots of two blocks. Slot 0 takes the writes of padding: it is never free, and its block always stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

#: A pool has at least as many blocks as this where its size allows: larger pieces move in a fraction of the time, and
#: smaller blocks are more often free of slots in use.
BLOCKS_MIN = 32


def block_slots(row_bytes: Iterable[int], granularity_bytes: int, slots: int) -> int:
    """Slots in a block of a pool of `slots` with buffers of rows of these sizes: as large as `BLOCKS_MIN` lets it."""
    smallest = lcm(*(granularity_bytes // gcd(granularity_bytes, row) for row in row_bytes))
    doublings = max(1, slots // (smallest * BLOCKS_MIN)).bit_length() - 1
    return smallest << doublings


def runs(numbers: Iterable[int] | NDArray[np.int64]) -> list[tuple[int, int]]:
    """[begin, end) of each run of consecutive numbers, in any order, none of them twice."""
    ordered = np.sort(np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers), dtype=np.int64))
    if not len(ordered):
        return []
    breaks = np.flatnonzero(np.diff(ordered) != 1)
    begins = [int(ordered[0]), *(int(ordered[index + 1]) for index in breaks)]
    ends = [*(int(ordered[index]) + 1 for index in breaks), int(ordered[-1]) + 1]
    return list(zip(begins, ends, strict=True))


@dataclass(slots=True)
class Blocks:
    """A pool of slots 1 to `slots`, and which of its blocks of `block` slots are mapped."""

    slots: int
    block: int
    mapped: set[int] = field(default_factory=set)

    @property
    def count(self) -> int:
        """Blocks in all, the last one perhaps in part beyond the pool."""
        return -(-(self.slots + 1) // self.block)

    @property
    def mapped_slots(self) -> int:
        """Slots that can be used now."""
        return sum(self.size(number) for number in self.mapped)

    def size(self, number: int) -> int:
        """Slots of a block that somebody may be given."""
        begin, end = self.span(number)
        return end - begin

    def span(self, number: int) -> tuple[int, int]:
        """[begin, end) of a block's slots that somebody may be given."""
        return max(1, number * self.block), min(self.slots + 1, (number + 1) * self.block)

    def to_map(self, slots: int) -> list[int]:
        """The lowest blocks that have to be mapped so that as many `slots` can be used, or all there are."""
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
        """Mapped blocks all of whose slots are `free`, the highest first, so that `keep_slots` can still be used."""
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
        """The slots of these blocks that somebody may be given."""
        spans = [np.arange(*self.span(number), dtype=np.int64) for number in sorted(numbers)]
        return np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)
