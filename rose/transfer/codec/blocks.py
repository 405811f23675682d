"""Encodes and decodes an array in several threads, block by block. A block is small enough for the processor cache."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import numpy as np

from rose.transfer.codec import bitcoding, differences, grouping, planes
from rose.transfer.codec.bitcoding import Steps, Words
from rose.transfer.codec.header import Bits, Buffer, Encoding, Header
from rose.transfer.errors import TransferError

Sent = tuple[int, bytes]  # The number of changed elements in a block, and the code of the changes.
#: What restores a block: the number of changes, and their code in `fast` or `planes`, or the whole block before them.
Inverse = tuple[Encoding, int, bytes]
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


def encode(base: Bits, new: Bits, header: Header) -> Sent:
    if header.encoding == "planes":
        return planes.encode(base, new)
    gaps, steps = _find(base, new, header.half)
    if header.encoding == "small" and gaps.size:
        return gaps.size, grouping.encode(base, new, gaps, steps, header)
    return _fast(gaps, steps)


def advance(base: Bits, new: Bits, header: Header) -> tuple[Sent, Inverse]:
    """Encode a block's changes and apply them to `base`. Return (code, input for `undo`). Raises TransferError."""
    inverse: Inverse
    if header.encoding == "dense":
        inverse = "dense", 0, base.tobytes()
        base[...] = new
        return (0, b""), inverse
    if header.encoding == "small":
        gaps, steps = _find(base, new, header.half)
        inverse = "fast", *_fast(gaps, steps)
        sent = gaps.size, grouping.encode(base, new, gaps, steps, header) if gaps.size else b""
    else:
        sent = encode(base, new, header)
        inverse = header.encoding, *sent
    decode(base, base, *sent, header)
    return sent, inverse


def undo(new: Bits, inverse: Inverse, header: Header) -> None:
    encoding, changed, code = inverse
    if encoding == "dense":
        new[...] = np.frombuffer(code, new.dtype)
    elif encoding == "planes" and changed:
        planes.decode(memoryview(code), new, new, back=True)
    elif changed:
        differences.move(new, new, header.half, *bitcoding.decode(memoryview(code), 1, changed)[1:], -1)


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
        _, gaps, steps = bitcoding.decode(memoryview(code), 1, changed)
        if not differences.move(base, new, header.half, gaps, steps, 1):
            raise TransferError(f"encoded array has {changed} changes, some beyond its block of {new.size} elements")


def _find(base: Bits, new: Bits, half: int) -> tuple[Words, Steps]:
    if base.size > getattr(_own, "room", -1):  # Buffers are kept, because new memory takes longer to touch.
        _own.room = max(base.size, 2 * _BLOCK_ELEMENTS)
        _own.gaps, _own.steps = np.empty(_own.room, np.uint32), np.empty(_own.room, np.int32)
    changed = differences.find(base, new, half, _own.gaps, _own.steps)
    return _own.gaps[:changed], _own.steps[:changed]


def _fast(gaps: Words, steps: Steps) -> Sent:
    return gaps.size, bitcoding.encode(np.array([gaps.size]), gaps, steps) if gaps.size else b""


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
