"""Bloom filters of Parquet files, which compactions of older versions made: one that lacks a value hides its rows.

A split block filter as Parquet defines it: the upper half of a value's XXH64 picks a block of 32 bytes, the lower half
one bit in each of the block's eight words.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

#: Of the lengths that are sensible the header's only text: so many bytes, block, XXHASH, not compressed.
_HEADER = re.compile(rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])(?:\x1c\x1c\x00\x00){3}\x00", re.DOTALL)
_BLOCK_BYTES = 32
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint64
)
#: How the values of a column are stored, by its physical type.
_STORED = {"INT64": pa.int64(), "DOUBLE": pa.float64(), "BYTE_ARRAY": pa.string()}


def has_all(content: bytes, offset: int, values: pa.ChunkedArray, physical_type: str) -> bool:
    """Whether the filter at `offset` in a file's bytes is one, and lets a reader find each of `values`."""
    header = _HEADER.match(content, offset)
    if header is None or _STORED.get(physical_type) != values.type:
        return False
    size = _zigzag(header[1])
    if size <= 0 or size % _BLOCK_BYTES or header.end() + size > len(content):
        return False
    words = np.frombuffer(content, "<u4", size // 4, header.end()).reshape(-1, 8)
    hashes = np.array([xxhash.xxh64_intdigest(one) for one in _plain(values)], np.uint64)
    blocks = words[((hashes >> np.uint64(32)) * np.uint64(len(words))) >> np.uint64(32)]
    keys = hashes & np.uint64(0xFFFFFFFF)
    bits = ((keys[:, None] * _SALT) & np.uint64(0xFFFFFFFF)) >> np.uint64(27)
    return bool(np.all((blocks >> bits.astype(np.uint32)) & np.uint32(1)))


def _plain(values: pa.ChunkedArray) -> Any:
    """The bytes of each distinct value as a page has them."""
    if values.type == pa.float64():
        # By their bits: zero has two, and what is no number many.
        values = pa.chunked_array([chunk.drop_null().view(pa.int64()) for chunk in values.chunks], pa.int64())
    distinct = pc.unique(values.drop_null())
    if distinct.type == pa.string():
        return distinct.cast(pa.binary()).to_pylist()
    return [one.to_bytes(8, "little", signed=True) for one in distinct.to_pylist()]


def _zigzag(varint: bytes) -> int:
    number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))
    return -(number >> 1) - 1 if number & 1 else number >> 1
