"""What changed between two arrays, kept until another step is added to it, or it is undone."""

from __future__ import annotations

from dataclasses import dataclass

from rose.runtime.transfer.codec import blocks, differences
from rose.runtime.transfer.codec.blocks import Block
from rose.runtime.transfer.codec.header import Bits, check_array
from rose.runtime.transfer.errors import TransferError


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed of each block of an array. That takes a fifth of the memory of places and steps."""

    elements: int
    blocks: tuple[Block, ...]

    @property
    def changed(self) -> int:
        """How many elements changed."""
        return sum(changed for changed, _ in self.blocks)

    def cut(self) -> list[tuple[slice, Block]]:
        """Return the elements of each block, and what it says."""
        return list(zip(blocks.cuts(self.elements), self.blocks, strict=True))


def between(base: Bits, new: Bits) -> Changes:
    """Return what changes `base` into `new`. Raises TransferError unless they have the same shape and dtype."""
    check_alike(base, new)
    before, after = base.reshape(-1), new.reshape(-1)
    found = blocks.in_threads(lambda cut: blocks.find(before[cut], after[cut]), blocks.cuts(new.size))
    return Changes(new.size, tuple(found))


def merge(first: Changes, second: Changes, item_bytes: int) -> Changes:
    """Return what leads from the base of `first` to the result of `second`, which begins where `first` ends."""

    def run(item: tuple[slice, Block, Block]) -> Block:
        cut, *both = item
        size = cut.stop - cut.start
        before, after = (blocks.gaps_and_steps(size, block) for block in both)
        gaps, steps = blocks.room(before[0].size + after[0].size)
        count = differences.merge(before, after, blocks.half(item_bytes), gaps, steps)
        return blocks.coded(size, gaps[:count], steps[:count])

    jobs = list(zip(blocks.cuts(first.elements), first.blocks, second.blocks, strict=True))
    return Changes(first.elements, tuple(blocks.in_threads(run, jobs)))


def move(array: Bits, done: Changes, sign: int = 1) -> None:
    """Turn an array into what `done` leads to, or (`sign` -1) into the base from which it led there, in place.

    Raises TransferError.
    """
    flat = array.reshape(-1)

    def run(item: tuple[slice, Block]) -> None:
        part = flat[item[0]]
        blocks.move(part, part, item[1], sign)

    list(blocks.in_threads(run, done.cut()))


def check_alike(base: Bits, new: Bits) -> None:
    """Raise TransferError unless both can be encoded, one against the other."""
    check_array(base)
    check_array(new)
    if base.shape != new.shape or base.dtype != new.dtype:
        raise TransferError(f"cannot encode {new.dtype}{new.shape} against a base of {base.dtype}{base.shape}")
