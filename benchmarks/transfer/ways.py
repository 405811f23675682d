"""Ways of sending new weights: the codec's, XOR with zstd, and a dense copy."""

import os
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
import zstandard

from rose.transfer.codec import codec
from rose.transfer.codec.choice import Link
from rose.transfer.codec.header import Bits, Buffer

_T = TypeVar("_T")
_R = TypeVar("_R")
_BLOCK_ELEMENTS = 1 << 20
_ZSTD_LEVEL = 1
_own = threading.local()


@dataclass(frozen=True, slots=True)
class Way:
    """`encode(base, new)` returns the bytes to send; `apply(base, sent)` changes the flat base in place."""

    name: str
    encode: Callable[[Bits, Bits], bytes]
    apply: Callable[[Bits, Buffer], object]


def _apply_copy(base: Bits, sent: Buffer) -> None:
    base[:] = np.frombuffer(sent, base.dtype)


def _encode_xor(base: Bits, new: Bits) -> bytes:
    def one(cut: slice) -> bytes:
        return _zstd()[0].compress((base[cut] ^ new[cut]).data)

    parts = in_threads(one, _blocks(new.size), "blocks")
    return b"".join([struct.pack(f"<{len(parts)}I", *map(len, parts)), *parts])


def _apply_xor(base: Bits, sent: Buffer) -> None:
    def one(job: tuple[slice, Buffer]) -> None:
        cut, part = job
        block = base[cut]
        np.bitwise_xor(block, np.frombuffer(_zstd()[1].decompress(part), base.dtype), out=block)

    in_threads(one, _unpack(base.size, sent), "blocks")


SMALL = Way(
    "small",
    lambda base, new: codec.encode(base, new, encoding="small"),
    lambda base, sent: codec.decode(base, sent, base),
)


def ours_at(link: Link) -> Way:
    return Way(
        "ours",
        lambda base, new: codec.encode(base, new, link=link),
        lambda base, sent: codec.decode(base, sent, out=base),
    )


def _encode_coo(base: Bits, new: Bits) -> bytes:
    places = np.flatnonzero(base != new).astype(np.uint32)
    return places.tobytes() + new[places].tobytes()


def _apply_coo(base: Bits, sent: Buffer) -> None:
    count = len(sent) // (4 + base.itemsize)
    base[np.frombuffer(sent, np.uint32, count)] = np.frombuffer(sent, base.dtype, offset=4 * count)


def _apply_zstd(base: Bits, sent: Buffer) -> None:
    base[:] = np.frombuffer(_zstd()[1].decompress(sent), base.dtype)


COO = Way("COO", _encode_coo, _apply_coo)
ZSTD = Way("zstd-1", lambda _, new: _zstd()[0].compress(new.data), _apply_zstd)
DENSE = Way("dense copy", lambda _, new: new.tobytes(), _apply_copy)
XOR = Way("XOR + zstd-1", _encode_xor, _apply_xor)


def _unpack(elements: int, sent: Buffer) -> list[tuple[slice, Buffer]]:
    cuts = _blocks(elements)
    at, jobs = 4 * len(cuts), []
    for cut, length in zip(cuts, struct.unpack_from(f"<{len(cuts)}I", sent), strict=True):
        jobs.append((cut, sent[at : at + length]))
        at += length
    return jobs


def _blocks(elements: int) -> list[slice]:
    return [slice(at, min(at + _BLOCK_ELEMENTS, elements)) for at in range(0, elements, _BLOCK_ELEMENTS)]


def _zstd() -> tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor]:
    if not hasattr(_own, "zstd"):
        _own.zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL), zstandard.ZstdDecompressor()
    zstd: tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor] = _own.zstd
    return zstd


def in_threads(act: Callable[[_T], _R], jobs: Sequence[_T], pool: str) -> list[_R]:
    """Return the results of all jobs from a pool's threads. A job that starts jobs itself names another pool."""
    return [act(job) for job in jobs] if len(jobs) < 2 else list(_threads(pool).map(act, jobs))


@cache
def _threads(pool: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix=pool)
