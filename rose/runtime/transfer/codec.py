"""Lossless delta between two arrays of float bit patterns, conditioned on the base the receiver holds.

Nearly every weight that an optimiser step changes in bf16 moves by one unit in the last place. So a delta says which
elements changed, and how far each moved in ULP order: the bijection of bit patterns onto integers that sorts floats,
with -0 just below +0 and NaNs at both ends. Distances are taken modulo 2**bits: any bit pattern, a NaN payload
included, comes back exactly. There are three encodings:

- `fast` (`bitcoding`): how many unchanged elements lie before each changed one, and of those that moved further than by
  one how far, as Rice codes; a bit for each sign. Unchanged elements are passed over at the speed of memory;
- `small` (`rangecoding`): an arithmetic code whose probabilities depend on the exponent of the base, since a step of
  the same size moves a small weight more often. Every element is looked at, so it takes longer, and it is within a few
  percent of the entropy given the base;
- `dense`: the array itself, where neither is smaller.

An array is cut into blocks that are encoded and decoded by several threads. Encoded, it is: a magic byte; the kind, a
byte; how many elements, and how many of them changed, as varints; then, unless nothing changed, the blocks. Of several
blocks each is preceded by the varints of how many of its elements changed, and of its bytes. Arrays are little-endian
unsigned integers of 1, 2 or 4 bytes, of any shape; nothing here knows about torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from rose.runtime.transfer import bitcoding, differences, rangecoding, varints
from rose.runtime.transfer.errors import TransferError

assert sys.byteorder == "little", "the codec reads and writes array memory as it lies; it needs a little-endian host"

Bits = npt.NDArray[np.unsignedinteger[Any]]
Encoding = Literal["dense", "fast", "small"]
Buffer = bytes | memoryview
_T = TypeVar("_T")
_R = TypeVar("_R")

_MAGIC = 0xD3
_ENCODINGS: tuple[Encoding, ...] = ("dense", "fast", "small")
#: The most that a header takes.
HEADER_BYTES = 2 + 2 * varints.BYTES
_BLOCK_ELEMENTS = 1 << 21
#: Of bf16 for two bytes, of e4m3 for one: `encode` is told where it is another.
_MANTISSA_BITS = {1: 3, 2: 7, 4: 23}
#: Where more changes than this, what `small` saves on the wire is worth the time it takes,
SMALL_FROM = 0.05
#: and up to this many elements the time does not matter.
SMALL_ELEMENTS = 1 << 17
_SAMPLED_PARTS = 64
_SAMPLED_ELEMENTS = 4096
_SIGNED: dict[int, np.dtype[np.signedinteger[Any]]] = {
    1: np.dtype(np.int8),
    2: np.dtype(np.int16),
    4: np.dtype(np.int32),
}
#: What the second byte of a header says: encoding, bytes per element, bits of the mantissa.
_KINDS = [(encoding, size, bits) for encoding in _ENCODINGS for size in _SIGNED for bits in range(8 * size)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What an encoded array says of itself."""

    encoding: Encoding
    item_bytes: int
    mantissa_bits: int
    elements: int
    changed: int

    @property
    def half(self) -> int:
        """Half of the bit patterns that an element can have."""
        return 1 << (8 * self.item_bytes - 1)

    @property
    def packed(self) -> bytes:
        """The header's bytes, at most `HEADER_BYTES`."""
        kind = _KINDS.index((self.encoding, self.item_bytes, self.mantissa_bits))
        return bytes([_MAGIC, kind]) + varints.packed(self.elements) + varints.packed(self.changed)


def encode(
    base: Bits | None, new: Bits, *, encoding: Encoding | None = None, mantissa_bits: int | None = None
) -> bytes:
    """Encode `new` for a receiver that holds `base` (same shape and dtype), or in full if `base` is None.

    `encoding` None: `small` up to `SMALL_ELEMENTS` elements, and where more than `SMALL_FROM` of them changed; else
    `fast`. `mantissa_bits` are those of the floats, None: bf16's for two bytes, fp32's for four, e4m3's for one. The
    result is never longer than `new.nbytes + HEADER_BYTES`: where a delta would be, it is `dense`.
    """
    _check(new)
    mantissa_bits = _MANTISSA_BITS[new.itemsize] if mantissa_bits is None else mantissa_bits
    if base is None or encoding == "dense":
        return _dense(new, new.size, mantissa_bits)
    if base.shape != new.shape or base.dtype != new.dtype:
        raise TransferError(f"cannot encode {new.dtype}{new.shape} against a base of {base.dtype}{base.shape}")
    base, new = base.reshape(-1), new.reshape(-1)
    if encoding is None:
        small = new.size <= SMALL_ELEMENTS or _share_changed(base, new) > SMALL_FROM
        encoding = "small" if small else "fast"
    header = Header(
        encoding=encoding, item_bytes=new.itemsize, mantissa_bits=mantissa_bits, elements=new.size, changed=0
    )
    blocks = list(_in_threads(lambda cut: _encode_block(base[cut], new[cut], header), _cuts(new.size)))
    header = replace(header, changed=sum(changed for changed, _ in blocks))
    parts = [header.packed]
    for changed, body in blocks if header.changed else []:
        if body is None:
            return _dense(new, header.changed, mantissa_bits)
        if len(blocks) > 1:
            parts += [varints.packed(changed), varints.packed(len(body))]
        parts.append(body)
    if sum(map(len, parts)) >= new.nbytes + len(parts[0]):
        return _dense(new, header.changed, mantissa_bits)
    return b"".join(parts)


def decode(base: Bits, blob: Buffer, out: Bits | None = None) -> Bits:
    """The array that `encode` was given, in `out`, or in a buffer of its own; `base` is only read.

    `base` gives shape and dtype; where `blob` is dense its values do not matter. `out` may be `base` itself, which is
    fastest. A wrong base of the right shape cannot be noticed here: compare hashes before and after. Raises
    TransferError for a blob that is not well formed; what `out` holds then means nothing.
    """
    _check(base)
    new = np.empty(base.shape, base.dtype) if out is None else out
    if new.shape != base.shape or new.dtype != base.dtype or not new.flags.c_contiguous:
        raise TransferError(f"cannot decode {base.dtype}{base.shape} into {new.dtype}{new.shape}")
    header, at = _header(blob)
    if (header.elements, header.item_bytes) != (base.size, base.itemsize):
        raise TransferError(
            f"encoded array has {header.elements} elements of {header.item_bytes} bytes, "
            f"expected {base.size} of {base.itemsize}"
        )
    body = memoryview(blob)[at:]
    if header.encoding == "dense":
        if len(body) != base.nbytes:
            raise TransferError(f"dense array is {len(body)} bytes, expected {base.nbytes}")
        new[...] = np.frombuffer(body, base.dtype).reshape(base.shape)
        return new
    flat, old = new.reshape(-1), base.reshape(-1)

    def run(block: _Block) -> None:
        if new is not base:
            flat[block.cut] = old[block.cut]
        _decode_block(flat[block.cut], block, header)

    list(_in_threads(run, _blocks(header, body)))
    return new


def read_header(blob: Buffer) -> Header:
    """Parse and check the header of an encoded array. Raises TransferError."""
    return _header(blob)[0]


def _header(blob: Buffer) -> tuple[Header, int]:
    """The header, and how many bytes it takes."""
    if len(blob) < 2 or blob[0] != _MAGIC or blob[1] >= len(_KINDS):
        raise TransferError(
            f"encoded array begins with {bytes(blob[:2]).hex() or 'nothing'}, expected {_MAGIC:x} and a kind below "
            f"{len(_KINDS):x}"
        )
    encoding, item_bytes, mantissa_bits = _KINDS[blob[1]]
    elements, at = varints.taken(blob, 2)
    changed, at = varints.taken(blob, at)
    if changed > elements:
        raise TransferError(f"encoded array says {changed} of {elements} elements changed")
    header = Header(
        encoding=encoding, item_bytes=item_bytes, mantissa_bits=mantissa_bits, elements=elements, changed=changed
    )
    return header, at


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed between two flattened arrays: where, rising, and how far in ULP order, modulo 2**bits."""

    elements: int
    positions: npt.NDArray[np.int64]
    steps: Bits


def changes(base: Bits, new: Bits) -> Changes:
    """What changes `base` into `new`, of the same shape and dtype."""
    _check(base)
    _check(new)
    before, after = base.reshape(-1), new.reshape(-1)
    positions = np.flatnonzero(before != after)
    return Changes(after.size, positions, _ulp_order(after[positions]) - _ulp_order(before[positions]))


def merge(first: Changes, second: Changes) -> Changes:
    """What leads from the base of `first` to the result of `second`, which begins where `first` ends."""
    positions = np.concatenate([first.positions, second.positions])
    # Both rise, which a stable sort makes use of.
    order = np.argsort(positions, kind="stable")
    positions, steps = positions[order], np.concatenate([first.steps, second.steps])[order]
    twice = np.flatnonzero(positions[1:] == positions[:-1])
    steps[twice] += steps[twice + 1]
    kept = steps != 0
    kept[twice + 1] = False
    return Changes(first.elements, positions[kept], steps[kept])


def undo(new: Bits, done: Changes, out: Bits) -> Bits:
    """The base from which `done` led to `new`, in `out`: an array like `new`, in other memory."""
    np.copyto(out, new)
    base = out.reshape(-1)
    base[done.positions] = _from_ulp_order(_ulp_order(base[done.positions]) - done.steps)
    return out


def _share_changed(base: Bits, new: Bits) -> float:
    """About what share of the elements changed, by looking at parts of them that lie evenly apart."""
    apart = max(new.size // _SAMPLED_PARTS, _SAMPLED_ELEMENTS)
    parts = [slice(at, at + _SAMPLED_ELEMENTS) for at in range(0, new.size, apart)]
    changed = sum(int(np.count_nonzero(base[part] != new[part])) for part in parts)
    return changed / max(sum(new[part].size for part in parts), 1)


def _encode_block(base: Bits, new: Bits, header: Header) -> tuple[int, bytes | None]:
    """How many elements changed, and the block; None if it would be larger than the array."""
    # As much as there can be: memory that is not written to is not taken.
    gaps, steps = np.empty(base.size, np.uint32), np.empty(base.size, np.int32)
    changed = differences.find(base, new, header.half, gaps, steps)
    gaps, steps = gaps[:changed], steps[:changed]
    if header.encoding == "small":
        return changed, rangecoding.encode(_exponents(base, header), gaps, steps)
    return changed, bitcoding.encode(base.size, gaps, steps)


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of an encoded array: its elements, how many of them changed, and how."""

    cut: slice
    changed: int
    body: memoryview


def _blocks(header: Header, body: memoryview) -> list[_Block]:
    """The blocks of an encoded array. Raises TransferError."""
    cuts = _cuts(header.elements)
    if not header.changed:
        blocks, at = [_Block(cut, 0, body[:0]) for cut in cuts], 0
    elif len(cuts) == 1:
        blocks, at = [_Block(cuts[0], header.changed, body)], len(body)
    else:
        blocks, at = [], 0
        for cut in cuts:
            changed, at = varints.taken(body, at)
            length, at = varints.taken(body, at)
            if changed > cut.stop - cut.start or length > len(body) - at:
                raise TransferError(
                    f"encoded array says {changed} of its elements {cut.start} to {cut.stop} changed, in {length} bytes"
                )
            blocks.append(_Block(cut, changed, body[at : at + length]))
            at += length
    changed = sum(block.changed for block in blocks)
    if (at, changed) != (len(body), header.changed):
        raise TransferError(
            f"encoded array has {len(body)} bytes after its header and {header.changed} changes, its blocks {at} and "
            f"{changed}"
        )
    return blocks


def _decode_block(new: Bits, block: _Block, header: Header) -> None:
    """Turn `new`, which holds the base, into what was encoded."""
    if not block.changed:
        if len(block.body):
            raise TransferError(f"encoded array has {len(block.body)} bytes for a block without changes")
        return
    if header.encoding == "small":
        gaps, steps = rangecoding.decode(block.body, _exponents(new, header), block.changed)
    else:
        gaps, steps = bitcoding.decode(block.body, new.size, block.changed)
    if not differences.move(new, header.half, gaps, steps):
        raise TransferError(
            f"encoded array has {block.changed} changes that lead past the {new.size} elements of a block"
        )


def _exponents(base: Bits, header: Header) -> npt.NDArray[np.uint8]:
    """Of each element, or its lowest eight bits if it has more."""
    exponent_bits = min(8 * header.item_bytes - 1 - header.mantissa_bits, 8)
    return (base >> header.mantissa_bits & (1 << exponent_bits) - 1).astype(np.uint8)


def _cuts(elements: int) -> list[slice]:
    """The array in blocks; a short end joins the block before it."""
    count = max(elements // _BLOCK_ELEMENTS, 1)
    ends = [*range(_BLOCK_ELEMENTS, count * _BLOCK_ELEMENTS, _BLOCK_ELEMENTS), elements]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _in_threads(act: Callable[[_T], _R], jobs: Sequence[_T]) -> Iterator[_R]:
    return map(act, jobs) if len(jobs) < 2 or _cores() == 1 else _threads().map(act, jobs)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), thread_name_prefix="rose-codec")


def _check(array: Bits) -> None:
    if array.dtype.kind != "u" or array.itemsize not in _SIGNED or not array.flags.c_contiguous:
        raise TransferError(f"expected a C-contiguous array of uint8, uint16 or uint32 bit patterns, got {array.dtype}")


def _dense(new: Bits, changed: int, mantissa_bits: int) -> bytes:
    header = Header(
        encoding="dense", item_bytes=new.itemsize, mantissa_bits=mantissa_bits, elements=new.size, changed=changed
    )
    return header.packed + new.tobytes()


def _ulp_order(bits: Bits) -> Bits:
    # An arithmetic shift spreads the sign bit: negatives are flipped whole, positives get the sign bit set.
    top = 8 * bits.itemsize - 1
    spread = (bits.view(_SIGNED[bits.itemsize]) >> top).view(bits.dtype)
    return bits ^ (spread | bits.dtype.type(1 << top))


def _from_ulp_order(order: Bits) -> Bits:
    top = 8 * order.itemsize - 1
    spread = (~order.view(_SIGNED[order.itemsize]) >> top).view(order.dtype)
    return order ^ (spread | order.dtype.type(1 << top))
