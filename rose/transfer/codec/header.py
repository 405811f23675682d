"""The header of an encoded array: a magic byte, a byte for encoding and type, and two varints (elements, changes)."""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rose.transfer.errors import TransferError

assert sys.byteorder == "little", "the codec needs a little-endian host"

Bits = npt.NDArray[np.unsignedinteger[Any]]
Buffer = bytes | memoryview
Encoding = Literal["dense", "fast", "small", "planes"]

_NUMBER_BYTES = 9  # A number takes at most this many bytes.
_MAGIC = 0xD6  # Rises with the format of any encoding.
_ENCODINGS: tuple[Encoding, ...] = ("dense", "fast", "small", "planes")
_ITEM_BYTES = (1, 2, 4)
#: What the second byte of a header means: the encoding, the bytes per element, and the bits of the mantissa.
_KINDS = [(encoding, size, bits) for encoding in _ENCODINGS for size in _ITEM_BYTES for bits in range(8 * size)]
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
HEADER_BYTES = 2 + 2 * _NUMBER_BYTES  # A header takes at most this many bytes.


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    encoding: Encoding
    item_bytes: int
    mantissa_bits: int
    elements: int
    changed: int  # For `dense` an estimate.

    @property
    def half(self) -> int:
        return 1 << (8 * self.item_bytes - 1)

    @property
    def packed(self) -> bytes:
        kind = _NUMBERS[self.encoding, self.item_bytes, self.mantissa_bits]
        return bytes([_MAGIC, kind]) + packed_number(self.elements) + packed_number(self.changed)


def read_header(blob: Buffer) -> tuple[Header, memoryview]:
    if len(blob) < 2 or blob[0] != _MAGIC or blob[1] >= len(_KINDS):
        raise TransferError(f"encoded array begins with {bytes(blob[:2]).hex()!r}, expected {_MAGIC:x} and an encoding")
    encoding, item_bytes, mantissa_bits = _KINDS[blob[1]]
    elements, at = take_number(blob, 2)
    changed, at = take_number(blob, at)
    if changed > elements:
        raise TransferError(f"encoded array says {changed} of {elements} elements changed")
    header = Header(
        encoding=encoding, item_bytes=item_bytes, mantissa_bits=mantissa_bits, elements=elements, changed=changed
    )
    return header, memoryview(blob)[at:]


def check_array(array: Bits) -> None:
    if array.dtype.kind != "u" or array.itemsize not in _ITEM_BYTES or not array.flags.c_contiguous:
        raise TransferError(f"expected a C-contiguous array of uint8, uint16 or uint32 bit patterns, got {array.dtype}")


def packed_number(value: int) -> bytes:
    """Return a number below 2**63 as a varint. It has seven bits per byte, the least significant bits first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def take_number(data: Buffer, at: int) -> tuple[int, int]:
    """Return the varint at byte `at`, and the position after it. Raises TransferError."""
    value = 0
    for number, byte in enumerate(data[at : at + _NUMBER_BYTES]):
        value |= (byte & 127) << 7 * number
        if byte < 128:
            return value, at + number + 1
    raise TransferError(f"encoded array has no complete number at byte {at} of {len(data)}")
