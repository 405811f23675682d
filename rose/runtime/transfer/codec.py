"""Lossless delta between two arrays of float bit patterns, conditioned on the base the receiver holds.

Nearly every weight that an optimiser step changes in bf16 moves by one unit in the last place. So a delta says which
elements changed, and how far each moved in ULP order: the bijection of bit patterns onto integers that sorts floats,
with -0 just below +0 and NaNs at both ends. Distances are taken modulo 2**bits: any bit pattern, a NaN payload
included, comes back exactly. `bitcoding` writes both. There are three encodings:

- `fast`: one context for all elements; unchanged ones are passed over at the speed of memory;
- `small`: a context for each exponent of the base, since a step of the same size moves a small weight more often;
  every element is looked at, so it takes longer, and it is within a few percent of the entropy given the base;
- `dense`: the array itself, where neither is smaller.

An array is cut into blocks that are encoded and decoded by several threads. Arrays are little-endian unsigned integers
of 1, 2 or 4 bytes, of any shape; nothing here knows about torch.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from rose.runtime.transfer import bitcoding
from rose.runtime.transfer.errors import TransferError

assert sys.byteorder == "little", "the codec reads and writes array memory as it lies; it needs a little-endian host"

Bits = npt.NDArray[np.unsignedinteger[Any]]
Encoding = Literal["dense", "fast", "small"]
Buffer = bytes | memoryview
_T = TypeVar("_T")
_R = TypeVar("_R")

_MAGIC = b"RGU2"
#: magic, encoding, bytes per element, bits of the mantissa, elements, changed.
_HEADER = struct.Struct("<4sBBBxQQ")
HEADER_BYTES = _HEADER.size
_ENCODINGS: tuple[Encoding, ...] = ("dense", "fast", "small")
#: bytes of the block, elements of it that changed.
_BLOCK = struct.Struct("<II")
#: A context of a block: which, words of places, words of lengths, Rice parameters to begin with (plus _INVERTED).
_CONTEXT = struct.Struct("<BIIBB")
_INVERTED = 64
_BLOCK_ELEMENTS = 1 << 22
#: Of bf16 for two bytes, of e4m3 for one: `encode` is told where it is another.
_MANTISSA_BITS = {1: 3, 2: 7, 4: 23}
#: Where more changes than this, what `small` saves on the wire is worth the time it takes.
SMALL_FROM = 0.05
_SAMPLED_PARTS = 64
_SAMPLED_ELEMENTS = 4096
#: What is read beyond the last word of a block, and means nothing.
_BEYOND_BYTES = 16
_SIGNED: dict[int, np.dtype[np.signedinteger[Any]]] = {
    1: np.dtype(np.int8),
    2: np.dtype(np.int16),
    4: np.dtype(np.int32),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What an encoded array says of itself."""

    encoding: Encoding
    item_bytes: int
    mantissa_bits: int
    elements: int
    changed: int

    def pack(self) -> bytes:
        """The header's bytes, `HEADER_BYTES` long."""
        encoding = _ENCODINGS.index(self.encoding)
        return _HEADER.pack(_MAGIC, encoding, self.item_bytes, self.mantissa_bits, self.elements, self.changed)


def encode(
    base: Bits | None, new: Bits, *, encoding: Encoding | None = None, mantissa_bits: int | None = None
) -> bytes:
    """Encode `new` for a receiver that holds `base` (same shape and dtype), or in full if `base` is None.

    `encoding` None: `fast`, or `small` where more than `SMALL_FROM` of the elements changed. `mantissa_bits` are those
    of the floats, None: bf16's for two bytes, fp32's for four, e4m3's for one. The result is never longer than
    `new.nbytes + HEADER_BYTES`: where a delta would be, it is `dense`.
    """
    _check(new)
    mantissa_bits = _MANTISSA_BITS[new.itemsize] if mantissa_bits is None else mantissa_bits
    if base is None or encoding == "dense":
        return _dense(new, new.size, mantissa_bits)
    if base.shape != new.shape or base.dtype != new.dtype:
        raise TransferError(f"cannot encode {new.dtype}{new.shape} against a base of {base.dtype}{base.shape}")
    base, new = base.reshape(-1), new.reshape(-1)
    if encoding is None:
        encoding = "small" if _share_changed(base, new) > SMALL_FROM else "fast"
    contexts = _Contexts.of(encoding, new.itemsize, mantissa_bits)
    blocks = list(_in_threads(lambda cut: _encode_block(base[cut], new[cut], contexts), _blocks(new.size)))
    total = sum(changed for changed, _ in blocks)
    if sum(len(block) for _, block in blocks) >= new.nbytes:
        return _dense(new, total, mantissa_bits)
    header = Header(
        encoding=encoding,
        item_bytes=new.itemsize,
        mantissa_bits=mantissa_bits,
        elements=new.size,
        changed=total,
    )
    return b"".join([header.pack(), *(block for _, block in blocks)])


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
        new[...] = np.frombuffer(body, base.dtype).reshape(base.shape)
        return new
    flat, old = new.reshape(-1), base.reshape(-1)
    contexts = _Contexts.of(header.encoding, header.item_bytes, header.mantissa_bits)
    jobs, changed = [], 0
    for cut in _blocks(base.size):
        if len(body) < _BLOCK.size:
            raise TransferError(f"encoded array ends where its block of elements {cut.start} to {cut.stop} begins")
        length, in_block = _BLOCK.unpack_from(body)
        if not _BLOCK.size <= length <= len(body) or in_block > cut.stop - cut.start:
            raise TransferError(f"block of elements {cut.start} to {cut.stop} contradicts itself: {length} bytes")
        jobs.append((cut, in_block, body[_BLOCK.size : length]))
        body = body[length:]
        changed += in_block
    if len(body) or changed != header.changed:
        raise TransferError(f"encoded array says {header.changed} elements changed, its blocks {changed}")

    def run(job: tuple[slice, int, memoryview]) -> None:
        cut, in_block, block = job
        if new is not base:
            flat[cut] = old[cut]
        _decode_block(flat[cut], in_block, block, contexts)

    list(_in_threads(run, jobs))
    return new


def read_header(blob: Buffer) -> Header:
    """Parse and check the header of an encoded array. Raises TransferError."""
    if len(blob) < HEADER_BYTES:
        raise TransferError(f"encoded array is {len(blob)} bytes, shorter than its header of {HEADER_BYTES}")
    magic, encoding, item_bytes, mantissa_bits, elements, changed = _HEADER.unpack_from(blob)
    if magic != _MAGIC:
        raise TransferError(f"encoded array begins with {magic!r}, expected {_MAGIC!r}")
    if encoding >= len(_ENCODINGS) or item_bytes not in _SIGNED or mantissa_bits >= 8 * item_bytes:
        raise TransferError(
            f"encoded array has unknown encoding {encoding}, or elements of {item_bytes} bytes with a mantissa of "
            f"{mantissa_bits} bits"
        )
    if changed > elements:
        raise TransferError(f"encoded array says {changed} of {elements} elements changed")
    return Header(
        encoding=_ENCODINGS[encoding],
        item_bytes=item_bytes,
        mantissa_bits=mantissa_bits,
        elements=elements,
        changed=changed,
    )


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


def undo(new: Bits, done: Changes) -> Bits:
    """The base from which `done` led to `new`, in a buffer of its own."""
    base = new.reshape(-1).copy()
    base[done.positions] = _from_ulp_order(_ulp_order(base[done.positions]) - done.steps)
    return base.reshape(new.shape)


@dataclass(frozen=True, slots=True)
class _Contexts:
    """How the context of an element is found: `base >> shift & mask`; `half` is 2**(bits - 1)."""

    half: int
    shift: int
    mask: int

    @classmethod
    def of(cls, encoding: Encoding, item_bytes: int, mantissa_bits: int) -> _Contexts:
        exponent_bits = min(8 * item_bytes - 1 - mantissa_bits, 8)
        mask = (1 << exponent_bits) - 1 if encoding == "small" else 0
        return cls(1 << (8 * item_bytes - 1), mantissa_bits, mask)


def _share_changed(base: Bits, new: Bits) -> float:
    """About what share of the elements changed, by looking at parts of them that lie evenly apart."""
    apart = max(new.size // _SAMPLED_PARTS, _SAMPLED_ELEMENTS)
    parts = [slice(at, at + _SAMPLED_ELEMENTS) for at in range(0, new.size, apart)]
    changed = sum(int(np.count_nonzero(base[part] != new[part])) for part in parts)
    return changed / max(sum(new[part].size for part in parts), 1)


def _encode_block(base: Bits, new: Bits, contexts: _Contexts) -> tuple[int, bytes]:
    """How many elements changed, and the block."""
    wide = np.int64 if base.itemsize == 4 else np.int32
    sizes = np.zeros(bitcoding.CONTEXTS, np.int64)
    counts = np.zeros(bitcoding.CONTEXTS, np.int64)
    # As much as there can be: memory that is not written to is not taken.
    gaps: bitcoding.Array = np.empty(base.size, np.uint32)
    steps: bitcoding.Array = np.empty(base.size, wide)
    if contexts.mask:
        of = np.empty(base.size, np.uint8)
        changed = bitcoding.collect_in_contexts(
            base, new, contexts.half, contexts.shift, contexts.mask, of, gaps, steps, sizes, counts
        )
        signs = np.packbits(steps[:changed] < 0, bitorder="little")
        found = of[:changed], gaps, steps
        gaps, steps = np.empty(changed, np.uint32), np.empty(changed, wide)
        bitcoding.by_context(*found, np.cumsum(counts) - counts, gaps, steps)
    else:
        whole = slice(0, base.size // (8 // base.itemsize) * (8 // base.itemsize))
        words = base[whole].view(np.uint64), new[whole].view(np.uint64)
        changed = bitcoding.collect(base, new, *words, contexts.half, gaps, steps)
        signs = np.packbits(steps[:changed] < 0, bitorder="little")
        sizes[0], counts[0] = base.size, changed
    used = np.flatnonzero(counts)
    ends = np.cumsum(counts)
    parts: list[bytes] = []
    rows = [bytes([len(used) - 1]) if len(used) else b""]
    for context in used:
        own = slice(ends[context] - counts[context], ends[context])
        size, count = int(sizes[context]), int(counts[context])
        rarer = min(count, size - count)
        more = bitcoding.count_more(steps[own])
        place_inverted, length_inverted = 2 * count > size, 2 * more > count
        place_k, length_k = _rice(size, rarer), _rice(count, min(more, count - more))
        # Room for every code to be an escape, which takes less than two words.
        out = np.empty(2 * (rarer + 2) + 4 * (count + 2), np.uint32)
        middle = bitcoding.write_places(gaps[own], size, place_inverted, place_k, out, 0)
        end = bitcoding.write_lengths(steps[own], length_inverted, length_k, out, middle)
        flags = (_INVERTED * place_inverted + place_k, _INVERTED * length_inverted + length_k)
        rows.append(_CONTEXT.pack(context, middle, end - middle, *flags))
        parts.append(out[:end].tobytes())
    body = b"".join([*rows, signs.tobytes(), *parts])
    return changed, _BLOCK.pack(_BLOCK.size + len(body), changed) + body


def _decode_block(new: Bits, changed: int, block: memoryview, contexts: _Contexts) -> None:
    """Turn `new`, which holds the base, into what was encoded."""
    if not changed:
        if len(block):
            raise TransferError(f"a block without changes has {len(block)} bytes")
        return
    used = block[0] + 1 if len(block) else 0
    sign_bytes = -(-changed // 8)
    words_from = 1 + used * _CONTEXT.size + sign_bytes
    if not used or words_from > len(block) or (len(block) - words_from) % 4 or (used > 1 and not contexts.mask):
        raise TransferError(f"a block with {changed} changes in {used} contexts has {len(block)} bytes")
    signs = np.frombuffer(block[words_from - sign_bytes : words_from], np.uint8)
    words = np.frombuffer(bytes(block[words_from:]) + bytes(_BEYOND_BYTES), np.uint32)
    starts = np.zeros((2, bitcoding.CONTEXTS), np.int64)
    ends = np.zeros((2, bitcoding.CONTEXTS), np.int64)
    inverted = np.zeros((2, bitcoding.CONTEXTS), np.bool_)
    k = np.full((2, bitcoding.CONTEXTS), -1, np.int64)
    at = 0
    for number in range(used):
        context, places, lengths, *flags = _CONTEXT.unpack_from(block, 1 + number * _CONTEXT.size)
        if k[0, context] >= 0 or any(flag >= 2 * _INVERTED or flag % _INVERTED > 31 for flag in flags):
            raise TransferError(f"a block says {flags} of its context {context}, or says it twice")
        starts[:, context] = at, at + places
        ends[:, context] = at + places, at + places + lengths
        inverted[:, context] = [flag >= _INVERTED for flag in flags]
        k[:, context] = [flag % _INVERTED for flag in flags]
        at += places + lengths
    if 4 * at != len(block) - words_from:
        raise TransferError(
            f"the contexts of a block have {at} words, the block {len(block) - words_from} bytes of them"
        )
    starts, ends = 32 * starts, 32 * ends
    if contexts.mask or inverted[0, 0]:
        shift, mask = contexts.shift, contexts.mask
        read = bitcoding.read_in_contexts(
            new, contexts.half, shift, mask, words, starts, ends, inverted, k, signs, changed
        )
    else:
        read = bitcoding.read(new, contexts.half, words, ends[:, 0], inverted[1, 0], k[:, 0], signs, changed)
    if not read:
        raise TransferError(f"a block does not say which {changed} elements changed")


def _rice(size: int, events: int) -> int:
    """The Rice parameter that fits `events` among `size`."""
    mean = (size - events) // (events + 1)
    return max(mean.bit_length() - 1, 0)


def _blocks(elements: int) -> list[slice]:
    """The array in blocks; a short end joins the block before it."""
    count = max(elements // _BLOCK_ELEMENTS, 1)
    ends = [*range(_BLOCK_ELEMENTS, count * _BLOCK_ELEMENTS, _BLOCK_ELEMENTS), elements]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _in_threads(act: Callable[[_T], _R], jobs: Sequence[_T]) -> Iterator[_R]:
    return map(act, jobs) if len(jobs) < 2 else _threads().map(act, jobs)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="rose-codec")


def _check(array: Bits) -> None:
    if array.dtype.kind != "u" or array.itemsize not in _SIGNED or not array.flags.c_contiguous:
        raise TransferError(f"expected a C-contiguous array of uint8, uint16 or uint32 bit patterns, got {array.dtype}")


def _dense(new: Bits, changed: int, mantissa_bits: int) -> bytes:
    header = Header(
        encoding="dense", item_bytes=new.itemsize, mantissa_bits=mantissa_bits, elements=new.size, changed=changed
    )
    return header.pack() + new.tobytes()


def _ulp_order(bits: Bits) -> Bits:
    # An arithmetic shift spreads the sign bit: negatives are flipped whole, positives get the sign bit set.
    top = 8 * bits.itemsize - 1
    spread = (bits.view(_SIGNED[bits.itemsize]) >> top).view(bits.dtype)
    return bits ^ (spread | bits.dtype.type(1 << top))


def _from_ulp_order(order: Bits) -> Bits:
    top = 8 * order.itemsize - 1
    spread = (~order.view(_SIGNED[order.itemsize]) >> top).view(order.dtype)
    return order ^ (spread | order.dtype.type(1 << top))
