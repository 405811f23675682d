"""Lossless delta between two arrays of float bit patterns, conditioned on the base the receiver holds.

Nearly every weight that an optimiser step changes in bf16 moves by one unit in the last place. So a delta says which
elements changed, and how far each moved in ULP order: the bijection of bit patterns onto integers that sorts floats,
with -0 just below +0 and NaNs at both ends. Distances are taken modulo 2**bits: any bit pattern, a NaN payload
included, comes back exactly. There are two encodings:

- `fast` (`bitcoding`): how many unchanged elements lie before each changed one, and of those that moved further than by
  one how far, as Rice codes; a bit for each sign. Unchanged elements are passed over at the speed of memory;
- `dense`: the array itself, where that is not longer.

An array is cut into blocks that are encoded and decoded by several threads. Encoded, it is a `header`, and then, unless
nothing changed, the blocks. Of several blocks each is preceded by the varints of how many of its elements changed, and
of its bytes; one that did not change has none. Arrays are little-endian unsigned integers of 1, 2 or 4 bytes, of any
shape; nothing here knows about torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rose.runtime.transfer.codec import blocks, changes
from rose.runtime.transfer.codec.blocks import Block
from rose.runtime.transfer.codec.changes import Changes, check_alike
from rose.runtime.transfer.codec.header import Bits, Buffer, Header, check_array, packed_number, read_body, take_number
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.turns import Turn, at_once


def encode(base: Bits | None, new: Bits) -> bytes:
    """Encode `new` for a receiver that holds `base` (same shape and dtype), or in full if `base` is None.

    The result is never longer than `new.nbytes + HEADER_BYTES`: where a delta would be, it is `dense`.
    """
    check_array(new)
    return _dense(new, new.size) if base is None else packed(changes.between(base, new), new)


def advance(base: Bits, new: Bits) -> Changes:
    """Turn `base` into `new`, in place, by decoding what is encoded of what changed; `packed` makes that an array.

    A block is decoded while it lies in the cache, which is faster than one after the other.
    """
    check_alike(base, new)
    old, flat = base.reshape(-1), new.reshape(-1)

    def run(cut: slice) -> Block:
        block = blocks.find(old[cut], flat[cut])
        blocks.move(old[cut], old[cut], block)
        return block

    return Changes(new.size, tuple(blocks.in_threads(run, blocks.cuts(new.size))))


def packed(done: Changes, new: Bits) -> bytes:
    """Return the encoded array of what `done` leads to, which is `new`."""
    header = Header(encoding="fast", item_bytes=new.itemsize, elements=new.size, changed=done.changed)
    parts: list[Buffer] = [header.packed]
    for changed, code in done.blocks if header.changed else ():
        if len(done.blocks) > 1:
            parts += [packed_number(changed), packed_number(len(code))]
        parts.append(code)
    return b"".join(parts) if sum(map(len, parts)) < new.nbytes + len(parts[0]) else _dense(new, header.changed)


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
            blocks.move(part if new is base else old[block.cut], part, (block.changed, block.code))

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


def _dense(new: Bits, changed: int) -> bytes:
    header = Header(encoding="dense", item_bytes=new.itemsize, elements=new.size, changed=changed)
    return header.packed + new.tobytes()
