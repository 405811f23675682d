"""The encoding `small`. It groups changes by the element's exponent in the base; the receiver has the same base.
Within a group, changes are spread evenly, so Rice codes are only a few percent longer than the entropy."""

import numpy as np

from rose.transfer.codec import bitcoding, differences
from rose.transfer.codec.bitcoding import Steps, Words
from rose.transfer.codec.header import Bits, Header
from rose.transfer.errors import TransferError

FIXED_BYTES = 2 + 2 * differences.GROUPS  # A block has at least about this many bytes.
_LOOKED_AT = 4096  # About so many elements are checked to find the largest exponent.


def encode(base: Bits, new: Bits, gaps: Words, steps: Steps, header: Header) -> bytes:
    """Encode the changes that `differences.find` returned. This may overwrite `steps`."""
    crossing = differences.cross(base, new, header.half, gaps, steps)
    shift, mask = _exponent(header)
    low = max(int(np.max(base[:: max(base.size // _LOOKED_AT, 1)] >> shift & mask)) - differences.GROUPS + 1, 0)
    apart, of_apart = np.empty_like(gaps), np.empty_like(steps)
    counts = differences.spread(base, shift, mask, low, gaps, steps, apart, of_apart)
    return bytes([crossing, low]) + bitcoding.encode(counts, apart, of_apart)


def decode(block: memoryview, base: Bits, new: Bits, changed: int, header: Header) -> None:
    if len(block) < 2:
        raise TransferError(f"encoded array has only {len(block)} bytes for a block with {changed} changes")
    counts, apart, steps = bitcoding.decode(block[2:], differences.GROUPS, changed)
    shift, mask = _exponent(header)
    if not differences.collect(base, new, shift, mask, block[1], header.half, block[0] != 0, counts, apart, steps):
        raise TransferError(f"encoded array has a block of {len(block)} bytes, whose {changed} changes do not fit")


def _exponent(header: Header) -> tuple[int, int]:
    return header.mantissa_bits, (1 << min(8 * header.item_bytes - 1 - header.mantissa_bits, 8)) - 1
