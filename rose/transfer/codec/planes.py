"""The encoding `planes`: the lowest bytes of all differences are one plane, the next bytes another, and so on. A plane
is compressed by zstd. If all bytes of a plane are the same, only one of them is kept."""

import threading

import numpy as np
import zstandard

from rose.transfer.codec.compiled import Array, Int, difference_mask, jit, ones
from rose.transfer.codec.header import Bits, packed_number, take_number
from rose.transfer.errors import TransferError

_AT_ONCE = 1 << 13  # This many elements are split or joined at once: all their steps fit the nearest cache.
_SAMPLES, _SAMPLED = 64, 64  # So many parts of so many elements are checked for changes that cross 0.
#: Level 1, set to look for few and long repetitions. A search for short ones costs more time than it saves bytes.
_LEVEL = zstandard.ZstdCompressionParameters.from_level(1, hash_log=8, min_match=7)
_NO_PLANE: Bits = np.frombuffer(b"", np.uint8)  # Read-only, as unpacked planes are: compiled code wants one type.
_own = threading.local()


def encode(base: Bits, new: Bits) -> tuple[int, bytes]:
    """Return (number of changes, code). A step is an XOR if over 1/4 of sampled changes flip the sign."""
    planes, crossing = _room(base.nbytes).reshape(base.itemsize, base.size), _crossing(base, new)
    changed, various = _split(base, new, crossing, planes)
    if not changed:
        return 0, b""
    parts = [bytes([crossing])]
    for number, plane in enumerate(planes):
        code = _codecs()[0].compress(plane.data) if various >> 8 * number & 255 else plane[:1].tobytes()
        parts += [packed_number(len(code)), code]
    return changed, b"".join(parts)


def decode(block: memoryview, base: Bits, new: Bits, *, back: bool = False) -> None:
    """Apply the block's changes to `base`, and write the result into `new`, which may be `base` itself. If `back`,
    undo the changes instead. Raises TransferError."""
    planes, at, filled = [_NO_PLANE] * 4, 1, 0
    for number in range(base.itemsize):
        length, at = take_number(block, at)
        code = block[at : at + length]
        at += length
        if len(code) == 1:
            filled |= code[0] << 8 * number
        else:
            planes[number] = _unpacked(code, base.size)
    if at != len(block):
        raise TransferError(f"encoded array has a block of {len(block)} bytes, but its planes take {at}")
    _join(tuple(planes), filled, base, new, block[0] != 0, back)


def _unpacked(code: memoryview, size: int) -> Bits:
    try:
        if zstandard.frame_content_size(code) != size:  # This check comes before zstd takes memory for the plane.
            raise zstandard.ZstdError(f"expected {size} bytes")
        return np.frombuffer(_codecs()[1].decompress(code), np.uint8)
    except (zstandard.ZstdError, ValueError) as error:
        raise TransferError(f"encoded array has a plane of {len(code)} bytes that cannot be unpacked ({error})")


@jit
def _crossing(base: Array, new: Array) -> bool:
    top = 8 * base.itemsize - 1
    changed: Int = 0
    crossings: Int = 0
    for begin in range(0, base.size, max(base.size // _SAMPLES, _SAMPLED)):
        for i in range(begin, min(begin + _SAMPLED, base.size)):
            changed += base[i] != new[i]
            crossings += np.int64(base[i] ^ new[i]) >> top
    return bool(4 * crossings > changed)


@jit
def _split(base: Array, new: Array, crossing: bool, planes: Array) -> tuple[Int, Int]:
    """Write the planes of all steps. A step is the XOR of old and new bits if `crossing`, else their difference. Return
    the number of changed elements, and a mask of the bits that are not the same in all steps."""
    steps = np.empty(_AT_ONCE, base.dtype)
    changed: Int = 0
    first: Int = 0
    various: Int = 0
    for begin in range(0, base.size, _AT_ONCE):
        old, now = base[begin : begin + _AT_ONCE], new[begin : begin + _AT_ONCE]
        before = changed
        for at in range(0, old.size - 63, 64):
            changed += ones(difference_mask(old, now, np.uintp(at)))
        for i in range(old.size & ~63, old.size):
            changed += old[i] != now[i]
        if changed == before:
            planes[:, begin : begin + _AT_ONCE] = 0
            various |= first
            continue
        _find_steps(old, now, crossing, steps)
        first = first if begin else np.int64(steps[0])
        for i in range(old.size):
            various |= np.int64(steps[i]) ^ first
        _write_planes(steps, begin, begin + old.size, planes)
    return changed, various


@jit
def _find_steps(old: Array, now: Array, crossing: bool, steps: Array) -> None:
    top = 8 * old.itemsize - 1
    if crossing:
        for i in range(old.size):
            steps[i] = now[i] ^ old[i]
    else:
        for i in range(old.size):
            steps[i] = now[i] - old[i]
        for i in range(old.size):
            step = np.int64(steps[i])
            steps[i] = step << 1 ^ -(step >> top)


@jit
def _write_planes(steps: Array, begin: Int, end: Int, planes: Array) -> None:
    lowest = planes[0, begin:end]
    for i in range(lowest.size):
        lowest[i] = steps[i]
    if len(planes) > 1:
        second = planes[1, begin:end]
        for i in range(second.size):
            second[i] = np.int64(steps[i]) >> 8
    if len(planes) > 2:
        third, highest = planes[2, begin:end], planes[3, begin:end]
        for i in range(third.size):
            third[i] = np.int64(steps[i]) >> 16
        for i in range(highest.size):
            highest[i] = np.int64(steps[i]) >> 24


@jit
def _gather(planes: tuple[Bits, ...], begin: Int, filled: Int, steps: Array) -> Int:
    """Write the steps from `begin` on into `steps`. Return 0 if all are 0."""
    lowest, second = planes[0][begin : begin + _AT_ONCE], planes[1][begin : begin + _AT_ONCE]
    third, highest = planes[2][begin : begin + _AT_ONCE], planes[3][begin : begin + _AT_ONCE]
    steps[:] = filled
    for i in range(lowest.size):
        steps[i] |= lowest[i]
    for i in range(second.size):
        steps[i] = np.int64(steps[i]) | np.int64(second[i]) << 8
    for i in range(third.size):
        steps[i] = np.int64(steps[i]) | np.int64(third[i]) << 16
    for i in range(highest.size):
        steps[i] = np.int64(steps[i]) | np.int64(highest[i]) << 24
    some = filled
    for i in range(0 if filled else steps.size):
        some |= np.int64(steps[i])
    return some


@jit
def _join(planes: tuple[Bits, ...], filled: Int, base: Array, new: Array, crossing: bool, back: bool) -> None:
    for begin in range(0, base.size, _AT_ONCE):
        old, now = base[begin : begin + _AT_ONCE], new[begin : begin + _AT_ONCE]
        steps = np.empty(old.size, base.dtype)
        if not _gather(planes, begin, filled, steps) and new.ctypes.data == base.ctypes.data:
            continue
        if crossing:
            for i in range(old.size):
                now[i] = old[i] ^ steps[i]
            continue
        for i in range(old.size):
            step = np.int64(steps[i])
            steps[i] = step >> 1 ^ -(step & 1)
        if back:
            for i in range(old.size):
                now[i] = old[i] - steps[i]
        else:
            for i in range(old.size):
                now[i] = old[i] + steps[i]


def _room(size_bytes: int) -> Bits:
    if size_bytes > getattr(_own, "size_bytes", -1):
        _own.size_bytes, _own.planes = size_bytes, np.empty(size_bytes, np.uint8)
    planes: Bits = _own.planes[:size_bytes]
    return planes


def _codecs() -> tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor]:
    if not hasattr(_own, "zstd"):
        _own.zstd = zstandard.ZstdCompressor(compression_params=_LEVEL), zstandard.ZstdDecompressor()
    codecs: tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor] = _own.zstd
    return codecs
