"""Encodes the blocks of an array in several threads. Each block stays in the cache until it is decoded."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cache
from typing import TypeVar

import numpy as np

from rose.runtime.transfer.codec import bitcoding, differences, grouping, planes
from rose.runtime.transfer.codec.bitcoding import Steps, Words
from rose.runtime.transfer.codec.header import Bits, Buffer, Header
from rose.runtime.transfer.errors import TransferError

#: The number of changed elements in a block, and the code of the changes: in `fast`, or in the encoding of the array.
FastBlock = tuple[int, bytes]
SentBlock = tuple[int, bytes]
_T = TypeVar("_T")
_R = TypeVar("_R")

_BLOCK_ELEMENTS = 1 << 21
_IN_THREADS = 16  # An array with fewer blocks gets one thread: other threads take other tensors.
_own = threading.local()


def cuts(elements: int) -> list[slice]:
    count = max(elements // _BLOCK_ELEMENTS, 1)
    ends = [*range(_BLOCK_ELEMENTS, count * _BLOCK_ELEMENTS, _BLOCK_ELEMENTS), elements]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def in_threads(act: Callable[[_T], _R], jobs: Sequence[_T]) -> Iterator[_R]:
    return map(act, jobs) if len(jobs) < _IN_THREADS or _cores() == 1 else _on_all_cores(act, jobs)


def room(elements: int) -> tuple[Words, Steps]:
    """Return this thread's buffers for gaps and steps. They are kept, because new memory takes longer to touch."""
    if elements > getattr(_own, "room", -1):
        _own.room = max(elements, 2 * _BLOCK_ELEMENTS)
        _own.gaps, _own.steps = np.empty(_own.room, np.uint32), np.empty(_own.room, np.int32)
    return _own.gaps, _own.steps


def find(base: Bits, new: Bits, half: int) -> tuple[Words, Steps]:
    gaps, steps = room(base.size)
    changed = differences.find(base, new, half, gaps, steps)
    return gaps[:changed], steps[:changed]


def fast(elements: int, gaps: Words, steps: Steps) -> FastBlock:
    return gaps.size, bitcoding.encode(elements, gaps, steps) if gaps.size else b""


def gaps_and_steps(elements: int, block: FastBlock) -> tuple[Words, Steps]:
    changed, code = block
    if changed:
        return bitcoding.decode(memoryview(code), elements, changed)
    return np.empty(0, np.uint32), np.empty(0, np.int32)


def encode(base: Bits, new: Bits, header: Header) -> SentBlock:
    if header.encoding == "planes":
        changed = int(np.count_nonzero(base != new))
        return changed, planes.encode(base, new) if changed else b""
    gaps, steps = find(base, new, header.half)
    if header.encoding == "small" and gaps.size:
        return gaps.size, grouping.encode(base, new, gaps, steps, header)
    return fast(base.size, gaps, steps)


def advance(base: Bits, new: Bits, header: Header) -> tuple[SentBlock, FastBlock]:
    """Return the code of a block's changes, and their code in `fast`. Also decode the code into `base`. Raises
    TransferError if it cannot be decoded."""
    in_fast = fast(base.size, *find(base, new, header.half))
    sent = in_fast if header.encoding in ("fast", "dense") else encode(base, new, header)
    decode(base, base, *sent, header)
    return sent, in_fast


def result(base: Bits, block: FastBlock, header: Header) -> Bits:
    new = np.empty_like(base)
    decode(base, new, *block, replace(header, encoding="fast"))
    return new


def decode(base: Bits, new: Bits, changed: int, code: Buffer, header: Header) -> None:
    if not changed:
        if len(code):
            raise TransferError(f"encoded array has {len(code)} bytes for a block without changes")
        if new is not base:
            new[...] = base
    elif header.encoding == "small":
        grouping.decode(memoryview(code), base, new, changed, header)
    elif header.encoding == "planes":
        planes.decode(memoryview(code), base, new)
    else:
        gaps, steps = bitcoding.decode(memoryview(code), base.size, changed)
        if not differences.move(base, new, header.half, gaps, steps, 1):
            raise TransferError(
                f"encoded array has {changed} changes that lead past the {new.size} elements of a block"
            )


def _on_all_cores(act: Callable[[_T], _R], jobs: Sequence[_T]) -> Iterator[_R]:
    futures = [_threads().submit(act, job) for job in jobs]
    try:
        for future in futures:
            yield future.result()
    finally:  # Wait for all threads, also after an error: the next call uses the same memory.
        for future in futures:
            future.cancel()
        wait(futures)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), thread_name_prefix="rose-codec")
