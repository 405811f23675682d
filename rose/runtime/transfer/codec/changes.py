"""The changes between two arrays. They can be merged and undone."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rose.runtime.transfer.codec import blocks, differences
from rose.runtime.transfer.codec.bitcoding import Steps
from rose.runtime.transfer.codec.blocks import FastBlock
from rose.runtime.transfer.codec.header import Bits, check_array
from rose.runtime.transfer.errors import TransferError


@dataclass(frozen=True, slots=True)
class Changes:
    elements: int
    item_bytes: int
    blocks: tuple[FastBlock, ...]

    @property
    def half(self) -> int:
        return 1 << (8 * self.item_bytes - 1)

    def cut(self) -> list[tuple[slice, FastBlock]]:
        return list(zip(blocks.cuts(self.elements), self.blocks, strict=True))

    def positions_and_steps(self) -> tuple[npt.NDArray[np.int64], Steps]:
        """Return the changed positions of the flattened array in ascending order, and their steps in [-`half`,
        `half`)."""
        places, all_steps = [], []
        for cut, block in self.cut():
            gaps, steps = blocks.gaps_and_steps(cut.stop - cut.start, block)
            places.append(np.cumsum(gaps, dtype=np.int64) + np.arange(cut.start, cut.start + gaps.size))
            all_steps.append(steps)
        return np.concatenate(places), np.concatenate(all_steps)


def between(base: Bits, new: Bits) -> Changes:
    check_alike(base, new)
    before, after = base.reshape(-1), new.reshape(-1)
    half = 1 << (8 * new.itemsize - 1)

    def run(cut: slice) -> FastBlock:
        return blocks.fast(after[cut].size, *blocks.find(before[cut], after[cut], half))

    return Changes(new.size, new.itemsize, tuple(blocks.in_threads(run, blocks.cuts(new.size))))


def merge(first: Changes, second: Changes) -> Changes:
    """Return the changes from the base of `first` to the result of `second`. The base of `second` is the result of
    `first`."""

    def run(item: tuple[slice, FastBlock, FastBlock]) -> FastBlock:
        cut, *both = item
        size = cut.stop - cut.start
        before, after = (blocks.gaps_and_steps(size, block) for block in both)
        gaps, steps = blocks.room(before[0].size + after[0].size)
        count = differences.merge(before, after, first.half, gaps, steps)
        return blocks.fast(size, gaps[:count], steps[:count])

    jobs = list(zip(blocks.cuts(first.elements), first.blocks, second.blocks, strict=True))
    return replace(first, blocks=tuple(blocks.in_threads(run, jobs)))


def undo(new: Bits, done: Changes) -> None:
    flat = new.reshape(-1)

    def run(item: tuple[slice, FastBlock]) -> None:
        part = flat[item[0]]
        differences.move(part, part, done.half, *blocks.gaps_and_steps(part.size, item[1]), -1)

    list(blocks.in_threads(run, done.cut()))


def check_alike(base: Bits, new: Bits) -> None:
    check_array(base)
    check_array(new)
    if base.shape != new.shape or base.dtype != new.dtype:
        raise TransferError(f"cannot encode {new.dtype}{new.shape} against a base of {base.dtype}{base.shape}")
