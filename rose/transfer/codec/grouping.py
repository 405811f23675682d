"""The encoding `small`. It groups changes by the element's exponent in the base; the receiver has the same base.
Within a group, changes are spread evenly, so Rice codes are only a few percent longer than the entropy."""

import numpy as np

from rose.transfer.codec import bitcoding, differences
from rose.transfer.codec.bitcoding import Steps, Words
from rose.transfer.codec.header import Bits, Header, packed_number, take_number
from rose.transfer.errors import TransferError

FIXED_BYTES = 2 + 4 * differences.GROUPS  # A block has at least about this many bytes.
_LOOKED_AT = 61  # One element in so many is checked to find the largest exponent.


def encode(base: Bits, new: Bits, gaps: Words, steps: Steps, header: Header) -> bytes:
    """Encode the changes that `differences.find` returned. This may overwrite `steps`."""
    crossing = differences.cross(base, new, header.half, gaps, steps)
    shift, mask = _exponent(header)
    low = max(int(np.max(base[::_LOOKED_AT] >> shift & mask)) - differences.GROUPS + 1, 0)
    apart, groups = np.empty(gaps.size, np.uint32), np.empty(gaps.size, np.uint8)
    differences.spread(base, shift, mask, low, gaps, apart, groups)
    order = np.argsort(groups, kind="stable")
    apart, steps = apart[order], steps[order]
    counts = np.bincount(groups, minlength=differences.GROUPS)
    parts = [bytes([crossing, low])]
    codes = []
    end = 0
    for group in np.flatnonzero(counts):
        begin, end = end, end + int(counts[group])
        scale = int(apart[begin:end].sum(dtype=np.int64)).bit_length()
        codes.append(bitcoding.encode(1 << scale, apart[begin:end], steps[begin:end]))
        parts += [bytes([group, scale]), packed_number(end - begin), packed_number(len(codes[-1]))]
    return b"".join([*parts, *codes])


def decode(block: memoryview, base: Bits, new: Bits, changed: int, header: Header) -> None:
    if len(block) < 2:
        raise TransferError(f"encoded array has only {len(block)} bytes for a block with {changed} changes")
    crossing, low = block[0] != 0, block[1]
    at, sent = 2, []
    ends = np.zeros(differences.GROUPS, np.int64)
    end, group = 0, -1
    while end < changed:
        last = group
        if len(block) < at + 2:
            raise TransferError(f"encoded array has a block that ends after {end} of {changed} changes")
        group, scale = block[at], block[at + 1]
        count, at = take_number(block, at + 2)
        length, at = take_number(block, at)
        end += count
        if not (last < group < differences.GROUPS and count and end <= changed and scale <= 32):
            raise TransferError(f"encoded array has a bad group {group} in a block, at change {end} of {changed}")
        ends[group:] = end
        sent.append((count, 1 << scale, length))
    apart, steps = np.empty(changed, np.uint32), np.empty(changed, np.int32)
    end = 0
    for count, elements, length in sent:
        begin, end = end, end + count
        apart[begin:end], steps[begin:end] = bitcoding.decode(block[at : at + length], elements, count)
        at += length
    shift, mask = _exponent(header)
    if at != len(block) or not differences.collect(
        base, new, shift, mask, low, header.half, crossing, ends, apart, steps
    ):
        raise TransferError(f"encoded array has a block of {len(block)} bytes, whose {changed} changes do not fit")


def _exponent(header: Header) -> tuple[int, int]:
    return header.mantissa_bits, (1 << min(8 * header.item_bytes - 1 - header.mantissa_bits, 8)) - 1
