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

An array is cut into blocks that are encoded and decoded by several threads. Encoded, it is a `header`, and then, unless
nothing changed, the blocks. Of several blocks each is preceded by the varints of how many of its elements changed, and
of its bytes; one that did not change has none. Arrays are little-endian
unsigned integers of 1, 2 or 4 bytes, of any shape; nothing here knows about torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rose.runtime.transfer.codec import blocks
from rose.runtime.transfer.codec.blocks import FastBlock, SentBlock
from rose.runtime.transfer.codec.changes import Changes, check_alike
from rose.runtime.transfer.codec.header import (
    Bits,
    Buffer,
    Encoding,
    Header,
    check_array,
    packed_number,
    read_body,
    take_number,
)
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.turns import Turn, at_once

#: Of bf16 for two bytes, of e4m3 for one: `encode` is told where it is another.
_MANTISSA_BITS = {1: 3, 2: 7, 4: 23}
#: Where more changes than this, what `small` saves on the wire is worth the time it takes,
SMALL_FROM = 0.05
#: and up to this many elements the time does not matter.
SMALL_ELEMENTS = 1 << 17
_SAMPLED_PARTS = 64
_SAMPLED_ELEMENTS = 2048


def encode(
    base: Bits | None, new: Bits, *, encoding: Encoding | None = None, mantissa_bits: int | None = None
) -> bytes:
    """Encode `new` for a receiver that holds `base` (same shape and dtype), or in full if `base` is None.

    `encoding` None: `small` up to `SMALL_ELEMENTS` elements, and where more than `SMALL_FROM` of them changed; else
    `fast`. `mantissa_bits` are those of the floats, None: bf16's for two bytes, fp32's for four, e4m3's for one. The
    result is never longer than `new.nbytes + HEADER_BYTES`: where a delta would be, it is `dense`.
    """
    check_array(new)
    header = _header(new, encoding or "dense", mantissa_bits)
    if base is None or encoding == "dense":
        return _dense(new, replace(header, changed=new.size))
    check_alike(base, new)
    old, flat = base.reshape(-1), new.reshape(-1)
    header = replace(header, encoding=encoding or _chosen(old, flat))

    def run(cut: slice) -> SentBlock:
        return blocks.encode(old[cut], *blocks.find(old[cut], flat[cut], header.half), header)

    return _joined(header, list(blocks.in_threads(run, blocks.cuts(new.size))), new)


def advance(base: Bits, new: Bits, *, mantissa_bits: int | None = None) -> tuple[bytes, Changes]:
    """Encode `new` as `encode` does, and turn `base` into it, in place, by decoding what was encoded.

    Also returns what changed. A block is decoded while it lies in the cache, which is faster than one after the other.
    Where the result is `dense`, `base` is what the blocks said of it. Raises TransferError as `decode` does.
    """
    check_alike(base, new)
    old, flat = base.reshape(-1), new.reshape(-1)
    header = _header(new, _chosen(old, flat), mantissa_bits)

    def run(cut: slice) -> tuple[SentBlock, FastBlock]:
        fast = blocks.fast(flat[cut].size, *blocks.find(old[cut], flat[cut], header.half))
        return blocks.advance(old[cut], fast, header), fast

    both = list(blocks.in_threads(run, blocks.cuts(new.size)))
    changes = Changes(new.size, new.itemsize, tuple(fast for _, fast in both))
    return _joined(header, [sent for sent, _ in both], base), changes


def redo(base: Bits, changes: Changes, *, mantissa_bits: int | None = None) -> bytes:
    """Encode what `changes` lead to, and turn `base` into it, as `advance` does; `fast` above `SMALL_ELEMENTS`."""
    flat = base.reshape(-1)
    header = _header(base, "small" if base.size <= SMALL_ELEMENTS else "fast", mantissa_bits)

    def run(item: tuple[slice, FastBlock]) -> SentBlock:
        return blocks.advance(flat[item[0]], item[1], header)

    return _joined(header, list(blocks.in_threads(run, changes.cut())), base)


def decode(base: Bits, blob: Buffer, out: Bits | None = None, turn: Turn = at_once) -> Bits:
    """The array that `encode` was given, in `out`, or in a buffer of its own; `base` is only read. A block is a turn.

    `base` gives shape and dtype; where `blob` is dense its values do not matter. `out` may be `base` itself, which is
    fastest. A wrong base of the right shape cannot be noticed here: compare hashes before and after. Raises
    TransferError for a blob that is not well formed; what `out` holds then means nothing.
    """
    check_array(base)
    new = np.empty(base.shape, base.dtype) if out is None else out
    if new.shape != base.shape or new.dtype != base.dtype or not new.flags.c_contiguous:
        raise TransferError(f"cannot decode {base.dtype}{base.shape} into {new.dtype}{new.shape}")
    header, body = read_body(blob)
    if (header.elements, header.item_bytes) != (base.size, base.itemsize):
        raise TransferError(
            f"encoded array has {header.elements} elements of {header.item_bytes} bytes, "
            f"expected {base.size} of {base.itemsize}"
        )
    if header.encoding == "dense":
        if len(body) != base.nbytes:
            raise TransferError(f"dense array is {len(body)} bytes, expected {base.nbytes}")
        flat, sent = new.reshape(-1), np.frombuffer(body, base.dtype)
        for cut in blocks.cuts(new.size):
            with turn():
                flat[cut] = sent[cut]
        return new
    flat, old = new.reshape(-1), base.reshape(-1)

    def run(block: _Block) -> None:
        part = flat[block.cut]
        with turn():
            blocks.decode(part if new is base else old[block.cut], part, block.changed, block.code, header)

    list(blocks.in_threads(run, _blocks(header, body)))
    return new


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of an encoded array: its elements, how many of them changed, and how."""

    cut: slice
    changed: int
    code: memoryview


def _blocks(header: Header, body: memoryview) -> list[_Block]:
    """Return the blocks of an encoded array. Raises TransferError."""
    cuts = blocks.cuts(header.elements)
    if not header.changed:
        cut_blocks, at = [_Block(cut, 0, body[:0]) for cut in cuts], 0
    elif len(cuts) == 1:
        cut_blocks, at = [_Block(cuts[0], header.changed, body)], len(body)
    else:
        cut_blocks, at = [], 0
        for cut in cuts:
            changed, at = take_number(body, at)
            length, at = take_number(body, at)
            if changed > cut.stop - cut.start or length > len(body) - at:
                raise TransferError(
                    f"encoded array says {changed} of its elements {cut.start} to {cut.stop} changed, in {length} bytes"
                )
            cut_blocks.append(_Block(cut, changed, body[at : at + length]))
            at += length
    changed = sum(block.changed for block in cut_blocks)
    if (at, changed) != (len(body), header.changed):
        raise TransferError(
            f"encoded array has {len(body)} bytes after its header and {header.changed} changes, its blocks {at} and "
            f"{changed}"
        )
    return cut_blocks


def _header(new: Bits, encoding: Encoding, mantissa_bits: int | None) -> Header:
    """Without the number of changes, which is not known yet."""
    mantissa_bits = _MANTISSA_BITS[new.itemsize] if mantissa_bits is None else mantissa_bits
    return Header(encoding=encoding, item_bytes=new.itemsize, mantissa_bits=mantissa_bits, elements=new.size, changed=0)


def _chosen(base: Bits, new: Bits) -> Encoding:
    return "small" if new.size <= SMALL_ELEMENTS or _share_changed(base, new) > SMALL_FROM else "fast"


def _share_changed(base: Bits, new: Bits) -> float:
    """About what share of the elements changed, by looking at parts of them that lie evenly apart."""
    apart = new.size // _SAMPLED_PARTS
    shape = _SAMPLED_PARTS, apart
    parts = [array[: apart * _SAMPLED_PARTS].reshape(shape)[:, :_SAMPLED_ELEMENTS] for array in (base, new)]
    return float(np.mean(parts[0] != parts[1]))


def _joined(header: Header, sent: Sequence[SentBlock], new: Bits) -> bytes:
    """Return the encoded array: its blocks, or `new` as it is where that is no longer."""
    header = replace(header, changed=sum(changed for changed, _ in sent))
    parts = [header.packed]
    for changed, code in sent if header.changed else []:
        if code is None:
            return _dense(new, header)
        if len(sent) > 1:
            parts += [packed_number(changed), packed_number(len(code))]
        parts.append(code)
    return b"".join(parts) if sum(map(len, parts)) < new.nbytes + len(parts[0]) else _dense(new, header)


def _dense(new: Bits, header: Header) -> bytes:
    return replace(header, encoding="dense").packed + new.tobytes()
