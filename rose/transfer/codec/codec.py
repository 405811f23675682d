"""Encodes an array of float bit patterns as its difference to a base, without loss. The receiver has the base.

A delta has the position and the step of each changed element. A step says by how many floats (ULPs) the element moved,
modulo 2**bits, so even a NaN payload is restored. `choice` takes the quickest encoding: `fast` (`bitcoding`), `small`
(`grouping`), `planes`, or `dense`, which is the array itself.

An encoded array is a `header`, and blocks if any element changed. If there are several blocks, each begins with two
varints: changed elements and bytes. Arrays are little-endian unsigned integers of 1, 2 or 4 bytes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rose.transfer.codec import blocks, choice, differences, grouping
from rose.transfer.codec.blocks import Inverse, Sent
from rose.transfer.codec.choice import LINK, Amount, Link
from rose.transfer.codec.header import (
    Bits,
    Buffer,
    Encoding,
    Header,
    check_array,
    packed_number,
    read_header,
    take_number,
)
from rose.transfer.errors import TransferError
from rose.transfer.turns import Turn, at_once

_MANTISSA_BITS = {1: 3, 2: 7, 4: 23}  # For each size in bytes: e4m3, bf16 and fp32. Callers pass other types' bits.
_Block = tuple[slice, int, memoryview]  # A block: its elements, the number of changes, and their code.
_SAMPLED, _SAMPLED_PART = 1 << 15, 64  # So many elements are sampled, in parts of so many.
_TRIED_CHANGES = 1 << 12  # Encodings are tried on a sample with about so many changes.


def encode(
    base: Bits | None,
    new: Bits,
    *,
    encoding: Encoding | None = None,
    mantissa_bits: int | None = None,
    link: Link = LINK,
) -> bytes:
    """Encode `new` as changes of `base` (None: in full). The code has at most `new.nbytes + HEADER_BYTES` bytes."""
    check_array(new)
    header = _header(new, encoding or "dense", mantissa_bits)
    if base is None:
        return _dense(new, header, new.size)
    _check_alike(base, new)
    old, flat = base.reshape(-1), new.reshape(-1)
    if encoding is None:
        header = _chosen(old, flat, header, link)
    if header.encoding == "dense":
        return _dense(new, header, header.changed or differences.count(old, flat))

    sent = blocks.in_threads(lambda cut: blocks.encode(old[cut], flat[cut], header), blocks.cuts(new.size))
    return _joined(header, list(sent), new)


def advance(
    base: Bits, new: Bits, *, mantissa_bits: int | None = None, link: Link = LINK
) -> tuple[bytes, list[Inverse]]:
    """Encode as `encode` does, and apply the changes to `base`. Return the code, and what `undo` needs."""
    _check_alike(base, new)
    old, flat = base.reshape(-1), new.reshape(-1)
    header = _chosen(old, flat, _header(new, "dense", mantissa_bits), link)
    both = list(blocks.in_threads(lambda cut: blocks.advance(old[cut], flat[cut], header), blocks.cuts(new.size)))
    return _joined(header, [sent for sent, _ in both], base), [inverse for _, inverse in both]


def undo(new: Bits, inverse: Sequence[Inverse]) -> None:
    flat, header = new.reshape(-1), _header(new, "dense", None)
    jobs = list(zip(blocks.cuts(new.size), inverse, strict=True))
    list(blocks.in_threads(lambda job: blocks.undo(flat[job[0]], job[1], header), jobs))


def _check_alike(base: Bits, new: Bits) -> None:
    check_array(base)
    check_array(new)
    if base.shape != new.shape or base.dtype != new.dtype:
        raise TransferError(f"cannot encode {new.dtype}{new.shape} against a base of {base.dtype}{base.shape}")


def _sample(flat: Bits, size: int) -> Bits:
    if flat.size <= size:
        return flat
    count = max(size // _SAMPLED_PART, 1)
    apart = flat.size // count
    parts: Bits = flat[: apart * count].reshape(count, apart)[:, :_SAMPLED_PART].reshape(-1)
    return parts


def _chosen(base: Bits, new: Bits, header: Header, link: Link) -> Header:
    """Return the header with the encoding; for `dense` also with the number of changes, estimated from a sample."""
    old, now = _sample(base, _SAMPLED), _sample(new, _SAMPLED)
    if not (changed := differences.count(old, now)):
        return replace(header, encoding="fast")
    amount = Amount(new.size, new.size * changed / old.size, new.itemsize)
    sizes = choice.estimates(amount)
    old, now = (_sample(some, _TRIED_CHANGES * some.size // changed) for some in (old, now))
    scale = new.size / old.size
    unknown = [encoding for encoding in choice.DELTAS if encoding not in sizes]
    if any(choice.may_be_chosen(encoding, sizes, amount, link, 1 / scale) for encoding in unknown):
        del sizes["fast"]
        for encoding in choice.DELTAS:
            if choice.may_be_chosen(encoding, sizes, amount, link, 1 / scale):
                fixed = grouping.FIXED_BYTES if encoding == "small" else 0
                tried = blocks.encode(old, now, replace(header, encoding=encoding))[1]
                sizes[encoding] = fixed + scale * max(len(tried) - fixed, 0)
    quickest = choice.quickest(sizes, amount, link)
    return replace(header, encoding=quickest, changed=round(amount.changed) if quickest == "dense" else 0)


def decode(base: Bits, blob: Buffer, out: Bits | None = None, turn: Turn = at_once) -> Bits:
    """Decode `blob` against `base`, and return the array. It is written into `out` (None: a new array), which may be
    `base`. The base is not checked, so compare hashes. Raises TransferError."""
    check_array(base)
    new = np.empty(base.shape, base.dtype) if out is None else out
    if new.shape != base.shape or new.dtype != base.dtype or not new.flags.c_contiguous:
        raise TransferError(f"cannot decode {base.dtype}{base.shape} into {new.dtype}{new.shape}")
    header, body = read_header(blob)
    if (header.elements, header.item_bytes) != (base.size, base.itemsize):
        found = f"{header.elements} elements of {header.item_bytes} bytes"
        raise TransferError(f"encoded array has {found}, expected {base.size} of {base.itemsize}")
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
                raise TransferError(f"encoded array claims {changed} changes in {length} bytes for its block {cut}")
            cut_blocks.append((cut, changed, body[at : at + length]))
            at += length
    changed = sum(changed for _, changed, _ in cut_blocks)
    if (at, changed) != (len(body), header.changed):
        raise TransferError(f"encoded array has {len(body)} bytes and {header.changed} changes, not {at} and {changed}")
    return cut_blocks


def _header(new: Bits, encoding: Encoding, mantissa_bits: int | None) -> Header:
    mantissa_bits = _MANTISSA_BITS[new.itemsize] if mantissa_bits is None else mantissa_bits
    return Header(encoding=encoding, item_bytes=new.itemsize, mantissa_bits=mantissa_bits, elements=new.size, changed=0)


def _joined(header: Header, sent: Sequence[Sent], new: Bits) -> bytes:
    header = replace(header, changed=header.changed + sum(changed for changed, _ in sent))
    parts = [header.packed]
    for changed, code in sent if header.changed else []:
        if len(sent) > 1:
            parts += [packed_number(changed), packed_number(len(code))]
        parts.append(code)
    smaller = header.encoding != "dense" and sum(map(len, parts)) < new.nbytes + len(parts[0])
    return b"".join(parts) if smaller else _dense(new, header, header.changed)


def _dense(new: Bits, header: Header, changed: int) -> bytes:
    return b"".join([replace(header, encoding="dense", changed=changed).packed, new.data])
