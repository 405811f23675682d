"""Lossless sparse delta between two arrays of float bit patterns, conditioned on the base the receiver holds.

Nearly every weight that an optimiser step changes in bf16 moves by one unit in the last place. So a delta is two
streams, each one zstd frame with a checksum:

- gaps: the number of unchanged elements before each changed one, as bytes. A byte of 255 means "255 more, go on",
  so a gap g is g // 255 such bytes and then g % 255.
- steps: the distance from base to new in ULP order, zigzag-coded, split into byte planes, lowest first.

ULP order is the bijection of bit patterns onto unsigned integers that sorts floats (negatives flipped, the sign bit
of positives set), with -0 just below +0 and NaNs at both ends. Distances are taken modulo 2**bits: any bit pattern,
a NaN payload included, comes back exactly. If a delta is not smaller than the array itself, the array is sent.

Arrays are little-endian unsigned integers of 2 or 4 bytes, of any shape; nothing here knows about torch.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zstandard

from rose.runtime.transfer.errors import TransferError

assert sys.byteorder == "little", "the codec reads and writes array memory as it lies; it needs a little-endian host"

Bits = npt.NDArray[np.unsignedinteger[Any]]
Encoding = Literal["delta", "dense"]
Buffer = bytes | memoryview

_MAGIC = b"RGU1"
#: magic, encoding, bytes per element, planes, elements, changed, gap bytes before zstd, gap bytes after it.
_HEADER = struct.Struct("<4sBBBQQQQ")
_ENCODINGS: tuple[Encoding, ...] = ("dense", "delta")
_SIGNED: dict[int, np.dtype[np.signedinteger[Any]]] = {2: np.dtype(np.int16), 4: np.dtype(np.int32)}
#: zstd finds few matches in these streams and mostly entropy-codes them, so a higher level buys nothing.
_ZSTD_LEVEL = 1
_MORE = 255
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What an encoded array says of itself."""

    encoding: Encoding
    item_bytes: int
    planes: int
    elements: int
    changed: int
    gap_bytes: int
    gap_frame_bytes: int

    def pack(self) -> bytes:
        """The header's bytes, `HEADER_BYTES` long."""
        return _HEADER.pack(
            _MAGIC,
            _ENCODINGS.index(self.encoding),
            self.item_bytes,
            self.planes,
            self.elements,
            self.changed,
            self.gap_bytes,
            self.gap_frame_bytes,
        )


def encode(base: Bits | None, new: Bits) -> bytes:
    """Encode `new` for a receiver that holds `base` (same shape and dtype), or in full if `base` is None.

    The result is never longer than `new.nbytes + HEADER_BYTES`.
    """
    _check(new)
    if base is None:
        return _dense(new, changed=new.size)
    if base.shape != new.shape or base.dtype != new.dtype:
        raise TransferError(f"cannot encode {new.dtype}{new.shape} against a base of {base.dtype}{base.shape}")
    base, new = base.reshape(-1), new.reshape(-1)
    positions = np.flatnonzero(base != new)
    gaps = _gaps(positions)
    steps = _ulp_order(new[positions])
    steps -= _ulp_order(base[positions])
    planes = _planes(_zigzag(steps))
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
    gap_frame = compressor.compress(gaps.data)
    step_frame = compressor.compress(planes.data)
    if len(gap_frame) + len(step_frame) >= new.nbytes:
        return _dense(new, changed=positions.size)
    header = Header(
        encoding="delta",
        item_bytes=new.itemsize,
        planes=planes.shape[0],
        elements=new.size,
        changed=positions.size,
        gap_bytes=gaps.size,
        gap_frame_bytes=len(gap_frame),
    )
    return header.pack() + gap_frame + step_frame


def decode(base: Bits, blob: Buffer) -> Bits:
    """The array that `encode` was given, in a buffer of its own; `base` is only read.

    `base` gives shape and dtype; where `blob` is dense its values do not matter. A wrong base of the right shape
    cannot be noticed here: compare hashes before and after. Raises TransferError for a blob that is not well formed.
    """
    _check(base)
    header = read_header(blob)
    if (header.elements, header.item_bytes) != (base.size, base.itemsize):
        raise TransferError(
            f"encoded array has {header.elements} elements of {header.item_bytes} bytes, "
            f"expected {base.size} of {base.itemsize}"
        )
    body = memoryview(blob)[HEADER_BYTES:]
    if header.encoding == "dense":
        if len(body) != base.nbytes:
            raise TransferError(f"dense array is {len(body)} bytes, expected {base.nbytes}")
        return np.frombuffer(body, base.dtype).reshape(base.shape).copy()
    gaps = np.frombuffer(_inflate(body[: header.gap_frame_bytes], header.gap_bytes, "gaps"), np.uint8)
    step_bytes = header.changed * header.planes
    planes = np.frombuffer(_inflate(body[header.gap_frame_bytes :], step_bytes, "steps"), np.uint8)
    positions = _positions(gaps, header)
    steps = _unzigzag(_unplane(planes.reshape(header.planes, header.changed), base.dtype))
    new = base.reshape(-1).copy()
    steps += _ulp_order(new[positions])
    new[positions] = _from_ulp_order(steps)
    return new.reshape(base.shape)


def read_header(blob: Buffer) -> Header:
    """Parse and check the header of an encoded array. Raises TransferError."""
    if len(blob) < HEADER_BYTES:
        raise TransferError(f"encoded array is {len(blob)} bytes, shorter than its header of {HEADER_BYTES}")
    magic, encoding, item_bytes, planes, elements, changed, gap_bytes, frame_bytes = _HEADER.unpack_from(blob)
    if magic != _MAGIC:
        raise TransferError(f"encoded array begins with {magic!r}, expected {_MAGIC!r}")
    if encoding >= len(_ENCODINGS) or item_bytes not in _SIGNED:
        raise TransferError(f"encoded array has unknown encoding {encoding} or element size {item_bytes}")
    header = Header(
        encoding=_ENCODINGS[encoding],
        item_bytes=item_bytes,
        planes=planes,
        elements=elements,
        changed=changed,
        gap_bytes=gap_bytes,
        gap_frame_bytes=frame_bytes,
    )
    dense = header.encoding == "dense"
    # Bounds what a forged header can make the receiver allocate to about the array's own size.
    if changed > elements or (dense and (planes or gap_bytes or frame_bytes)):
        raise TransferError(f"encoded array has a header that contradicts itself: {header}")
    if not dense and (planes > item_bytes or not changed <= gap_bytes <= changed + elements // _MORE):
        raise TransferError(f"encoded array has a header that contradicts itself: {header}")
    return header


def _check(array: Bits) -> None:
    if array.dtype.kind != "u" or array.itemsize not in _SIGNED or not array.flags.c_contiguous:
        raise TransferError(f"expected a C-contiguous array of uint16 or uint32 bit patterns, got {array.dtype}")


def _dense(new: Bits, *, changed: int) -> bytes:
    header = Header(
        encoding="dense",
        item_bytes=new.itemsize,
        planes=0,
        elements=new.size,
        changed=changed,
        gap_bytes=0,
        gap_frame_bytes=0,
    )
    return header.pack() + new.tobytes()


def _gaps(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    gaps = np.diff(positions, prepend=-1) - 1
    more = gaps // _MORE
    if not more.any():
        return gaps.astype(np.uint8)
    ends = np.cumsum(more + 1) - 1
    coded = np.full(ends[-1] + 1, _MORE, np.uint8)
    coded[ends] = gaps - more * _MORE
    return coded


def _positions(gaps: npt.NDArray[np.uint8], header: Header) -> npt.NDArray[np.int64]:
    positions = np.cumsum(gaps, dtype=np.int64)
    if gaps.size != header.changed:
        ends = np.flatnonzero(gaps != _MORE)
        if ends.size != header.changed:
            raise TransferError(f"encoded array has {ends.size} gaps, expected {header.changed}")
        positions = positions[ends]
    positions += np.arange(header.changed)
    if header.changed and positions[-1] >= header.elements:
        raise TransferError(f"encoded array changes element {positions[-1]} of {header.elements}")
    return positions


def _sign(item_bytes: int) -> int:
    return 1 << (8 * item_bytes - 1)


def _ulp_order(bits: Bits) -> Bits:
    # An arithmetic shift spreads the sign bit: negatives are flipped whole, positives get the sign bit set.
    spread = (bits.view(_SIGNED[bits.itemsize]) >> (8 * bits.itemsize - 1)).view(bits.dtype)
    return bits ^ (spread | bits.dtype.type(_sign(bits.itemsize)))


def _from_ulp_order(order: Bits) -> Bits:
    spread = (~order.view(_SIGNED[order.itemsize]) >> (8 * order.itemsize - 1)).view(order.dtype)
    return order ^ (spread | order.dtype.type(_sign(order.itemsize)))


def _zigzag(steps: Bits) -> Bits:
    signed = steps.view(_SIGNED[steps.itemsize])
    return (steps << steps.dtype.type(1)) ^ (signed >> (8 * steps.itemsize - 1)).view(steps.dtype)


def _unzigzag(coded: Bits) -> Bits:
    one = coded.dtype.type(1)
    return (coded >> one) ^ (~(coded & one) + one)


def _planes(coded: Bits) -> npt.NDArray[np.uint8]:
    """uint8[planes, n]: byte p of each value in row p, without the high rows that are zero throughout."""
    largest = int(coded.max()) if coded.size else 0
    count = (largest.bit_length() + 7) // 8
    return np.ascontiguousarray(coded.view(np.uint8).reshape(-1, coded.itemsize)[:, :count].T)


def _unplane(planes: npt.NDArray[np.uint8], dtype: np.dtype[np.unsignedinteger[Any]]) -> Bits:
    coded: Bits = np.zeros(planes.shape[1], dtype)
    for index, plane in enumerate(planes):
        coded |= plane.astype(dtype) << dtype.type(8 * index)
    return coded


def _inflate(frame: Buffer, expected_bytes: int, what: str) -> bytes:
    try:
        size = zstandard.frame_content_size(frame)
        if size != expected_bytes:
            raise TransferError(f"{what} of an encoded array inflate to {size} bytes, expected {expected_bytes}")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise TransferError(f"{what} of an encoded array cannot be decompressed: {error}")
