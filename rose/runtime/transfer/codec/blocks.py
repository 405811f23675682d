"""Blocks of an array: what is encoded at once, in one of several threads.

A block is large enough that its own codes adapt, and small enough that what is decoded right after it was encoded is
still in the cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import numpy as np

from rose.runtime.transfer.codec import bitcoding, differences
from rose.runtime.transfer.codec.bitcoding import Steps, Words
from rose.runtime.transfer.codec.header import Bits, Buffer
from rose.runtime.transfer.errors import TransferError

#: How many elements of a block changed, and the code of how; no bytes where none did.
Block = tuple[int, Buffer]
_T = TypeVar("_T")
_R = TypeVar("_R")

_BLOCK_ELEMENTS = 1 << 21
#: An array of fewer blocks is left to one thread: others take other tensors, and more of them would only wait for each
#: other.
_IN_THREADS = 16
_own = threading.local()


def cuts(elements: int) -> list[slice]:
    """Return the array in blocks; a short end joins the block before it."""
    count = max(elements // _BLOCK_ELEMENTS, 1)
    ends = [*range(_BLOCK_ELEMENTS, count * _BLOCK_ELEMENTS, _BLOCK_ELEMENTS), elements]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def in_threads(act: Callable[[_T], _R], jobs: Sequence[_T]) -> Iterator[_R]:
    """Results in the order of the jobs, one for each block; those of a large array on all cores."""
    return map(act, jobs) if len(jobs) < _IN_THREADS or _cores() == 1 else _on_all_cores(act, jobs)


def room(elements: int) -> tuple[Words, Steps]:
    """For gaps and steps: this thread's own, used anew each time, since to touch memory anew takes longer."""
    if elements > getattr(_own, "room", -1):
        _own.room = max(elements, 2 * _BLOCK_ELEMENTS)
        _own.gaps, _own.steps = np.empty(_own.room, np.uint32), np.empty(_own.room, np.int32)
    return _own.gaps, _own.steps


def half(item_bytes: int) -> int:
    """Half of the bit patterns that an element of so many bytes can have."""
    return 1 << (8 * item_bytes - 1)


def find(base: Bits, new: Bits) -> Block:
    """Return what leads from `base` to `new`."""
    gaps, steps = room(base.size)
    changed = differences.find(base, new, half(new.itemsize), gaps, steps)
    return coded(base.size, gaps[:changed], steps[:changed])


def coded(elements: int, gaps: Words, steps: Steps) -> Block:
    """Return the block of so many elements that changes so."""
    return gaps.size, bitcoding.encode(elements, gaps, steps) if gaps.size else b""


def gaps_and_steps(elements: int, block: Block) -> tuple[Words, Steps]:
    """Gaps and steps that `coded` was given. Raises TransferError."""
    changed, code = block
    if changed:
        return bitcoding.decode(memoryview(code), elements, changed)
    if len(code):
        raise TransferError(f"encoded array has {len(code)} bytes for a block without changes")
    return np.empty(0, np.uint32), np.empty(0, np.int32)


def move(base: Bits, new: Bits, block: Block, sign: int = 1) -> None:
    """Bring what `base` becomes by a block, or (`sign` -1) was before it, to `new`, which may be `base`.

    Raises TransferError for a block that is not well formed; what `new` holds then means nothing.
    """
    gaps, steps = gaps_and_steps(base.size, block)
    if not differences.move(base, new, half(base.itemsize), gaps, steps, sign):
        raise TransferError(f"encoded array has {block[0]} changes that lead past the {new.size} elements of a block")


def _on_all_cores(act: Callable[[_T], _R], jobs: Sequence[_T]) -> Iterator[_R]:
    futures = [_threads().submit(act, job) for job in jobs]
    try:
        for future in futures:
            yield future.result()
    finally:
        # None may write any more once this has failed: whoever tries again uses the same memory.
        for future in futures:
            future.cancel()
        wait(futures)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), thread_name_prefix="rose-codec")
