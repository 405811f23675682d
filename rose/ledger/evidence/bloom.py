"""Bloom filters of Parquet files: a filter that lacks a value hides its rows from readers.

A split block filter as Parquet defines it: the upper half of a value's XXH64 picks a block of 32 bytes, the lower half
one bit in each of the block's eight words. The hash is over the value's plain encoding.
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
#: How Arrow holds the bytes of the plain encoding, by physical type and Arrow's type.
_PLAIN = {
    ("INT32", pa.int32()): pa.int32(),
    ("INT32", pa.date32()): pa.int32(),
    ("INT64", pa.int64()): pa.int64(),
    # By their bits: zero has two, and NaN many.
    ("FLOAT", pa.float32()): pa.int32(),
    ("DOUBLE", pa.float64()): pa.int64(),
    ("BYTE_ARRAY", pa.string()): pa.binary(),
    ("BYTE_ARRAY", pa.binary()): pa.binary(),
}


def has_all(content: bytes, offset: int, values: pa.ChunkedArray, physical_type: str) -> bool | None:
    """Whether the filter at `offset` in a file's bytes lets a reader find each of `values`.

    None if this version cannot read the filter, or does not know how the values are stored.
    """
    header, plain = _HEADER.match(content, offset), _plain(values, physical_type)
    if header is None or plain is None:
        return None
    size = _zigzag(header[1])
    if size <= 0 or size % _BLOCK_BYTES or header.end() + size > len(content):
        return None
    words = np.frombuffer(content, "<u4", size // 4, header.end()).reshape(-1, 8)
    hashes = np.array([xxhash.xxh64_intdigest(value) for value in plain], np.uint64)
    blocks = words[((hashes >> np.uint64(32)) * np.uint64(len(words))) >> np.uint64(32)]
    keys = hashes & np.uint64(0xFFFFFFFF)
    bits = ((keys[:, None] * _SALT) & np.uint64(0xFFFFFFFF)) >> np.uint64(27)
    return bool(np.all((blocks >> bits.astype(np.uint32)) & np.uint32(1)))


def _plain(values: pa.ChunkedArray, physical_type: str) -> list[bytes] | None:
    """The plain encoding of each distinct value; None for a type whose encoding is not known here."""
    if physical_type == "FIXED_LEN_BYTE_ARRAY" and pa.types.is_fixed_size_binary(values.type):
        fixed: list[bytes] = pc.unique(values.drop_null()).to_pylist()
        return fixed
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    if (stored := _PLAIN.get((physical_type, values.type))) is None:
        return None
    chunks = [chunk.drop_null() for chunk in values.chunks]
    distinct: list[Any] = pc.unique(pa.chunked_array([chunk.view(stored) for chunk in chunks], stored)).to_pylist()
    if stored == pa.binary():
        return distinct
    return [value.to_bytes(stored.bit_width // 8, "little", signed=True) for value in distinct]


def _zigzag(varint: bytes) -> int:
    number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))
    return -(number >> 1) - 1 if number & 1 else number >> 1
