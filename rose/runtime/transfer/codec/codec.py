"""Encodes the difference between two arrays of float bit patterns without loss. The receiver has the base.

An optimiser step moves most changed bf16 weights by one unit in the last place (ULP). A delta has the positions of the
changed elements, and their steps. A step counts in ULP order modulo 2**bits, so every bit pattern is restored, even a
NaN payload. `choice` takes the encoding that is quickest on the link:

- `fast` (`bitcoding`): gaps, signs and distances as Rice codes
- `small` (`grouping`): the same, grouped by the exponent of the base; its size is close to the entropy
- `planes` (`planes`): the bytes of all steps, compressed by zstd
- `dense`: the array itself

An encoded array is a `header`, followed by blocks if any element changed. If there are several blocks, each begins with
two varints: the number of its changed elements, and the number of its bytes. Arrays are little-endian unsigned integers
of 1, 2 or 4 bytes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rose.runtime.transfer.codec import blocks, choice
from rose.runtime.transfer.codec.blocks import FastBlock, SentBlock
from rose.runtime.transfer.codec.changes import Changes, check_alike
from rose.runtime.transfer.codec.choice import LINK, Link
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

_MANTISSA_BITS = {1: 3, 2: 7, 4: 23}  # For each size in bytes: e4m3, bf16 and fp32. Callers pass other types' bits.
_Block = tuple[slice, int, memoryview]  # A block: its elements, the number of changes, and their code.
#: Encodings are tried on a sample: one element in `_SAMPLED_OF`, taken in parts of `_SAMPLED_PART` elements.
_SAMPLED_OF = 32
_SAMPLED_PART = 128
_SAMPLED_MIN, _SAMPLED_MAX = 1 << 16, 1 << 17


def encode(
    base: Bits | None,
    new: Bits,
    *,
    encoding: Encoding | None = None,
    mantissa_bits: int | None = None,
    link: Link = LINK,
) -> bytes:
    """Encode `new` against `base`, or in full if there is no base. Both have the same shape and dtype. By default, the
    encoding is the quickest on the `link`, and `mantissa_bits` follows from the item size. The result has at most
    `new.nbytes + HEADER_BYTES` bytes."""
    check_array(new)
    header = _header(new, encoding or "dense", mantissa_bits)
    if base is None or encoding == "dense":
        return _dense(new, replace(header, changed=new.size))
    check_alike(base, new)
    old, flat = base.reshape(-1), new.reshape(-1)
    header = replace(header, encoding=encoding or chosen(sample(old), sample(flat), header.mantissa_bits, link))
    if header.encoding == "dense":  # Nothing is gained by a delta: only its changes are counted.
        return _dense(new, replace(header, changed=int(np.count_nonzero(old != flat))))

    def run(cut: slice) -> SentBlock:
        return blocks.encode(old[cut], flat[cut], header)

    return _joined(header, list(blocks.in_threads(run, blocks.cuts(new.size))), new)


def advance(base: Bits, new: Bits, *, mantissa_bits: int | None = None, link: Link = LINK) -> tuple[bytes, Changes]:
    """Encode `new` as `encode` does, and decode the result into `base` block by block. Return the result and the
    changes."""
    check_alike(base, new)
    old, flat = base.reshape(-1), new.reshape(-1)
    header = _header(new, "dense", mantissa_bits)
    header = replace(header, encoding=chosen(sample(old), sample(flat), header.mantissa_bits, link))

    def run(cut: slice) -> tuple[SentBlock, FastBlock]:
        return blocks.advance(old[cut], flat[cut], header)

    both = list(blocks.in_threads(run, blocks.cuts(new.size)))
    changes = Changes(new.size, new.itemsize, tuple(fast for _, fast in both))
    return _joined(header, [sent for sent, _ in both], base), changes


def redo(base: Bits, changes: Changes, encoding: Encoding, *, mantissa_bits: int | None = None) -> bytes:
    flat = base.reshape(-1)
    header = _header(base, encoding, mantissa_bits)

    def run(item: tuple[slice, FastBlock]) -> SentBlock:
        part, block = flat[item[0]], item[1]
        sent = block if encoding == "fast" else blocks.encode(part, blocks.result(part, block, header), header)
        blocks.decode(part, part, *sent, header)
        return sent

    return _joined(header, list(blocks.in_threads(run, changes.cut())), base)


def sample(array: Bits) -> Bits:
    flat = array.reshape(-1)
    size = min(max(flat.size // _SAMPLED_OF, _SAMPLED_MIN), _SAMPLED_MAX)
    if flat.size <= size:
        return flat.copy()
    count = size // _SAMPLED_PART
    apart = flat.size // count
    parts: Bits = flat[: apart * count].reshape(count, apart)[:, :_SAMPLED_PART].reshape(-1)
    return parts


def chosen(old: Bits, new: Bits, mantissa_bits: int | None, link: Link) -> Encoding:
    if not (changed := int(np.count_nonzero(old != new))):
        return "fast"
    sizes: dict[Encoding, int] = {"dense": new.nbytes}
    for encoding in choice.deltas(changed / new.size):
        if not choice.may_be_chosen(encoding, sizes, new.size, changed, new.itemsize, link):
            continue
        sizes[encoding] = len(blocks.encode(old, new, _header(new, encoding, mantissa_bits))[1])
    return choice.quickest(sizes, new.size, changed, new.itemsize, link)


def decode(base: Bits, blob: Buffer, out: Bits | None = None, turn: Turn = at_once) -> Bits:
    """Return the decoded array in `out`, or in a new buffer. `out` may be `base`. Each block is decoded in one turn. A
    wrong base is not noticed here, so compare the hashes. Raises TransferError if the blob is malformed; the content of
    `out` is then undefined."""
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


def _joined(header: Header, sent: Sequence[SentBlock], new: Bits) -> bytes:
    header = replace(header, changed=sum(changed for changed, _ in sent))
    parts = [header.packed]
    for changed, code in sent if header.changed else []:
        if len(sent) > 1:
            parts += [packed_number(changed), packed_number(len(code))]
        parts.append(code)
    smaller = header.encoding != "dense" and sum(map(len, parts)) < new.nbytes + len(parts[0])
    return b"".join(parts) if smaller else _dense(new, header)


def _dense(new: Bits, header: Header) -> bytes:
    return replace(header, encoding="dense").packed + new.tobytes()
