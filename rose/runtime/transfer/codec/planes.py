"""The encoding `planes`: the lowest bytes of all differences, then the next bytes, and so on. Each of these planes is
compressed by zstd."""

import threading
from collections.abc import Iterator

import numpy as np
import zstandard

from rose.runtime.transfer.codec.header import Bits, packed_number, take_number
from rose.runtime.transfer.errors import TransferError

_AT_ONCE = 1 << 15  # This many elements are split at once: all steps then fit the nearest caches.
_LOOKED_AT = 61  # One element in so many is checked for a change that crosses 0.
#: Level 1, set to look for few and long repetitions. A search for short ones costs more time than it saves bytes.
_LEVEL = zstandard.ZstdCompressionParameters.from_level(1, hash_log=8, min_match=7)
_own = threading.local()


def encode(base: Bits, new: Bits) -> bytes:
    """Encode the differences, with the sign bit lowest. If more than a quarter of the changes cross 0, encode the
    differing bits instead."""
    differ = base[::_LOOKED_AT] ^ new[::_LOOKED_AT]
    top = 8 * base.itemsize - 1
    crossing = 4 * int(np.count_nonzero(differ >> top)) > int(np.count_nonzero(differ))
    planes = np.empty((base.itemsize, base.size), np.uint8)
    for cut in _cuts(base.size):
        if crossing:
            values = base[cut] ^ new[cut]
        else:
            values = new[cut] - base[cut]
            sign = values >> top
            values <<= 1
            values ^= -sign
        for number, plane in enumerate(planes):
            plane[cut] = values >> 8 * number if number else values
    parts = [bytes([crossing])]
    for plane in planes:
        code = _codecs()[0].compress(plane.data)
        parts += [packed_number(len(code)), code]
    return b"".join(parts)


def decode(block: memoryview, base: Bits, new: Bits) -> None:
    """Write the result to `new`, which may be `base`. Raises TransferError if the block is malformed; `new` is then
    undefined."""
    planes, at = [], 1
    for _ in range(base.itemsize):
        length, at = take_number(block, at)
        planes.append(_unpacked(block[at : at + length], base.size))
        at += length
    if at != len(block):
        raise TransferError(f"encoded array has a block of {len(block)} bytes, and its planes take {at}")
    for cut in _cuts(base.size):
        values = planes[0][cut].astype(base.dtype)
        for number, plane in enumerate(planes[1:], 1):
            values |= plane[cut].astype(base.dtype) << 8 * number
        if block[0]:
            np.bitwise_xor(base[cut], values, out=new[cut])
        else:
            sign = values & 1
            values >>= 1
            values ^= -sign
            np.add(base[cut], values, out=new[cut])


def _unpacked(code: memoryview, size: int) -> Bits:
    try:
        if zstandard.frame_content_size(code) != size:  # This check comes before zstd takes memory for the plane.
            raise zstandard.ZstdError(f"expected {size} bytes")
        plane: Bits = np.frombuffer(_codecs()[1].decompress(code), np.uint8)
    except (zstandard.ZstdError, ValueError) as error:
        raise TransferError(f"encoded array has a plane of {len(code)} bytes that cannot be unpacked ({error})")
    if plane.size != size:
        raise TransferError(f"encoded array has a plane of {plane.size} elements, expected {size}")
    return plane


def _cuts(size: int) -> Iterator[slice]:
    return (slice(at, at + _AT_ONCE) for at in range(0, size, _AT_ONCE))


def _codecs() -> tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor]:
    if not hasattr(_own, "zstd"):
        _own.zstd = zstandard.ZstdCompressor(compression_params=_LEVEL), zstandard.ZstdDecompressor()
    codecs: tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor] = _own.zstd
    return codecs
