"""Lossless delta between two arrays of float bit patterns, conditioned on the base that the receiver holds.

Nearly every weight that an optimiser step changes in bf16 moves by one unit in the last place. So a delta has the
positions of the changed elements, and how far each moved in ULP order: the bijection of bit patterns onto integers that
sorts floats, with -0 just below +0 and NaNs at both ends. Distances are modulo 2**bits, so any bit pattern, NaN
payloads included, is restored exactly. There are three encodings:
- `fast` (`bitcoding`): gaps, signs and distances as Rice codes, at the speed of memory over unchanged elements;
- `small` (`rangecoding`): an arithmetic code with probabilities by the exponent of the base, slower, within a few
percent of the entropy given the base;
- `dense`: the array itself, where neither is smaller.

Several threads encode and decode the blocks of an array. An encoded array is a `header`, and then the blocks if any
element changed. Each of several blocks begins with the varints of its changed elements and its bytes; an unchanged
block has no bytes. Arrays are little-endian unsigned integers of 1, 2 or 4 bytes, of any shape."""

from collections.abc import Sequence
from dataclasses import replace

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
    read_header,
    take_number,
)
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.turns import Turn, at_once

_MANTISSA_BITS = {1: 3, 2: 7, 4: 23}  # By bytes per element: e4m3, bf16 and fp32. Callers pass it for other types.
SMALL_FROM = 0.05  # Above this share of changed elements, the bytes that `small` saves are worth its time.
SMALL_ELEMENTS = 1 << 17  # Up to this many elements the time does not matter.
_Block = tuple[slice, int, memoryview]  # A block: its elements, the number of changes, and their code.
_SAMPLED_PARTS = 64
_SAMPLED_ELEMENTS = 2048


def encode(
    base: Bits | None, new: Bits, *, encoding: Encoding | None = None, mantissa_bits: int | None = None
) -> bytes:
    """Encode `new` for a receiver that holds `base` (same shape and dtype), or in full without `base`. By default the
    encoding is `small` up to `SMALL_ELEMENTS` elements or above a changed share of `SMALL_FROM`, else `fast`.
    `mantissa_bits` defaults to bf16's for two bytes, fp32's for four, e4m3's for one. A delta longer than `new` becomes
    `dense`, so the result has at most `new.nbytes + HEADER_BYTES` bytes."""
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
    """Encode `new` as `encode` does, and decode each block into `base` while it lies in the cache. Also returns the
    changes. If the result is `dense`, `base` still gets the decoded blocks. Raises TransferError as `decode` does."""
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
    """Encode the result of `changes` and turn `base` into it, as `advance` does; `fast` above `SMALL_ELEMENTS`."""
    flat = base.reshape(-1)
    header = _header(base, "small" if base.size <= SMALL_ELEMENTS else "fast", mantissa_bits)

    def run(item: tuple[slice, FastBlock]) -> SentBlock:
        return blocks.advance(flat[item[0]], item[1], header)

    return _joined(header, list(blocks.in_threads(run, changes.cut())), base)


def decode(base: Bits, blob: Buffer, out: Bits | None = None, turn: Turn = at_once) -> Bits:
    """Return the array that was encoded, in `out` or a new buffer; `out` may be `base` itself, which is fastest. `base`
    gives shape and dtype. A block is a turn. A wrong base of the right shape is not noticed: compare hashes before and
    after. Raises TransferError for a malformed blob; the content of `out` is then undefined."""
    check_array(base)
    new = np.empty(base.shape, base.dtype) if out is None else out
    if new.shape != base.shape or new.dtype != base.dtype or not new.flags.c_contiguous:
        raise TransferError(f"cannot decode {base.dtype}{base.shape} into {new.dtype}{new.shape}")
    header, body = read_header(blob)
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
        cut, changed, code = block
        part = flat[cut]
        with turn():
            blocks.decode(part if new is base else old[cut], part, changed, code, header)

    list(blocks.in_threads(run, _blocks(header, body)))
    return new


def _blocks(header: Header, body: memoryview) -> list[_Block]:
    cuts = blocks.cuts(header.elements)
    cut_blocks: list[_Block]
    if not header.changed:
        cut_blocks, at = [(cut, 0, body[:0]) for cut in cuts], 0
    elif len(cuts) == 1:
        cut_blocks, at = [(cuts[0], header.changed, body)], len(body)
    else:
        cut_blocks, at = [], 0
        for cut in cuts:
            changed, at = take_number(body, at)
            length, at = take_number(body, at)
            if changed > cut.stop - cut.start or length > len(body) - at:
                raise TransferError(
                    f"encoded array says {changed} of its elements {cut.start} to {cut.stop} changed, in {length} bytes"
                )
            cut_blocks.append((cut, changed, body[at : at + length]))
            at += length
    changed = sum(changed for _, changed, _ in cut_blocks)
    if (at, changed) != (len(body), header.changed):
        raise TransferError(
            f"encoded array has {len(body)} bytes after its header and {header.changed} changes, its blocks {at} and "
            f"{changed}"
        )
    return cut_blocks


def _header(new: Bits, encoding: Encoding, mantissa_bits: int | None) -> Header:
    mantissa_bits = _MANTISSA_BITS[new.itemsize] if mantissa_bits is None else mantissa_bits
    return Header(encoding=encoding, item_bytes=new.itemsize, mantissa_bits=mantissa_bits, elements=new.size, changed=0)


def _chosen(base: Bits, new: Bits) -> Encoding:
    if new.size <= SMALL_ELEMENTS:
        return "small"
    # Evenly spaced samples give the approximate share of changed elements.
    apart = new.size // _SAMPLED_PARTS
    shape = _SAMPLED_PARTS, apart
    parts = [array[: apart * _SAMPLED_PARTS].reshape(shape)[:, :_SAMPLED_ELEMENTS] for array in (base, new)]
    return "small" if np.mean(parts[0] != parts[1]) > SMALL_FROM else "fast"


def _joined(header: Header, sent: Sequence[SentBlock], new: Bits) -> bytes:
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
