"""The code of `fast`: of the changed elements of an array the gaps before them, their signs, and how far they moved.

A gap is how many unchanged elements lie before a changed one. Most move by one, so only the others are told: the gaps
between those, among the changed elements, and how far they moved less two. Where more than half of the elements moved
further, each is told how far, less one. All of these are numbers in Rice codes; a sign is one bit.

A Rice code of a number is the number's upper part in ones that a zero ends, then its `k` lower bits. `k` follows the
mean of the numbers, anew after each eight, so there are no tables, and a run of them adapts when a part of the array
changes more than another. Bits are packed least significant first; each run of numbers begins with a byte.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rose.runtime.transfer import varints
from rose.runtime.transfer.compiled import Array, Int, jit, zeros_above, zeros_below
from rose.runtime.transfer.errors import TransferError

Words = npt.NDArray[np.uint32]
Steps = npt.NDArray[np.int32]

#: Bytes after the last that `_read` may look at; what they hold means nothing.
_BEYOND_BYTES = 72
#: A quotient this long is an escape: the value follows in 32 bits.
_ESCAPE = 20
#: Up to this parameter two codes that are no escapes have no more bits than are looked at.
_PAIRED = 7
#: Up to this one no code has more bits than are looked at.
_LARGEST = 31
#: The sum of eight values of which the parameter 0 is right.
_FIRST = 11
_U = np.uint64


def encode(elements: int, gaps: Words, steps: Steps) -> bytes:
    """The changes that `differences.find` found among so many elements."""
    changed = gaps.size
    # 2**31 is its own negative: unsigned, it is right.
    far = np.abs(steps).view(np.uint32)
    further = np.flatnonzero(far > 1)
    every = 2 * further.size > changed
    parts = [
        varints.packed(changed if every else further.size),
        np.packbits(steps < 0, bitorder="little").tobytes(),
        _packed(gaps, _parameter(elements, changed)),
    ]
    if every:
        parts.append(_packed(far - 1, 0))
    else:
        between = further.astype(np.uint32)
        between[1:] -= between[:-1] + 1
        parts += [_packed(between, _parameter(changed, further.size)), _packed(far[further] - 2, 0)]
    return b"".join(parts)


def decode(block: memoryview, elements: int, changed: int) -> tuple[Words, Steps]:
    """The gaps and steps of `changed` elements. Raises TransferError; the gaps may still lead past the elements."""
    told, signs_from = varints.taken(block, 0)
    signs_to = signs_from + -(-changed // 8)
    if told > changed or signs_to > len(block):
        raise TransferError(
            f"encoded array has {len(block)} bytes for {changed} changes of a block, of which {told} go further"
        )
    data = np.frombuffer(bytes(block) + bytes(_BEYOND_BYTES), np.uint8)
    negative = np.unpackbits(data[signs_from:signs_to], count=changed, bitorder="little")
    steps = (1 - 2 * negative.view(np.int8)).astype(np.int32)
    gaps, at = _unpacked(data, 8 * signs_to, changed, _parameter(elements, changed))
    if told == changed:
        far, at = _unpacked(data, at, told, 0)
        steps *= far.view(np.int32) + 1
    else:
        between, at = _unpacked(data, at, told, _parameter(changed, told))
        far, at = _unpacked(data, at, told, 0)
        further = np.cumsum(between, dtype=np.int64) + np.arange(told)
        if told and further[-1] >= changed:
            raise TransferError(
                f"encoded array says that change {further[-1]} of the {changed} of a block goes further"
            )
        steps[further] *= far.view(np.int32) + 2
    if at != 8 * len(block):
        raise TransferError(
            f"encoded array has {len(block)} bytes for {changed} changes of a block: they take {at // 8}"
        )
    return gaps, steps


def _parameter(size: int, events: int) -> int:
    """The Rice parameter that fits the gaps before `events` among `size`."""
    mean = (size - events) // (events + 1)
    return max(mean.bit_length() - 1, 0)


def _packed(values: Words, k: int) -> bytes:
    out = np.empty(2 * values.size + 1, np.uint32)
    bits = _write(values, k, out)
    return out.view(np.uint8)[: -(-bits // 8)].tobytes()


def _unpacked(data: Array, at: int, count: int, k: int) -> tuple[Words, int]:
    """So many numbers from the bit `at`, and the bit at which the next run begins."""
    values = np.empty(count, np.uint32)
    end = _read(data, at, k, values)
    if end < 0:
        raise TransferError(
            f"encoded array has a block of {data.size - _BEYOND_BYTES} bytes that ends before its numbers"
        )
    return values, end + 7 & ~7


@jit
def _adapt(total: Int) -> tuple[Int, Int]:
    """The next Rice parameter, and the sum of the values that it follows, the older of which count half as much.

    `total` is about that of sixteen values. 2**k comes to lie between their mean and its half. Only numbers that nobody
    wrote, of more than 32 bits, would lead beyond `_LARGEST`.
    """
    return min(63 - zeros_above(_U(total * 31 >> 9 | 1)), _LARGEST), total >> 1


@jit
def _put(out: Words, at: Int, acc: Int, bits: Int, value: Int, width: Int) -> tuple[Int, Int, Int]:
    """Append `width` <= 32 bits; `bits` < 32 of `acc` wait to be written."""
    acc |= _U(value) << _U(bits)
    bits += width
    out[at] = acc & _U(0xFFFFFFFF)
    full = bits >> 5
    return at + full, acc >> _U(full << 5), bits & 31


@jit
def _write(values: Array, k: Int, out: Words) -> Int:
    """Write numbers below 2**32, the first with the parameter `k`. Returns how many bits of `out` that took.

    `out` needs two words for each, and one more.
    """
    at = bits = 0
    acc = _U(0)
    total = _FIRST << k
    for begin in range(0, values.size, 8):
        for i in range(begin, min(begin + 8, values.size)):
            value = np.int64(values[i])
            total += value
            quotient = value >> k
            if quotient < _ESCAPE and quotient + k < 31:
                code = (value & (1 << k) - 1) << (quotient + 1) | (1 << quotient) - 1
                at, acc, bits = _put(out, at, acc, bits, code, quotient + 1 + k)
            elif quotient < _ESCAPE:
                at, acc, bits = _put(out, at, acc, bits, (1 << quotient) - 1, quotient + 1)
                at, acc, bits = _put(out, at, acc, bits, value & (1 << k) - 1, k)
            else:
                at, acc, bits = _put(out, at, acc, bits, (1 << _ESCAPE) - 1, _ESCAPE)
                at, acc, bits = _put(out, at, acc, bits, value, 32)
        k, total = _adapt(total)
    out[at] = acc
    return 32 * at + bits


@jit
def _look(data: Array, at: Int) -> Int:
    """At least 57 bits from the bit `at`; compiled, it is one load."""
    byte = np.uintp(at) >> np.uintp(3)
    word = _U(data[byte]) | _U(data[byte + np.uintp(1)]) << _U(8)
    word |= _U(data[byte + np.uintp(2)]) << _U(16) | _U(data[byte + np.uintp(3)]) << _U(24)
    word |= _U(data[byte + np.uintp(4)]) << _U(32) | _U(data[byte + np.uintp(5)]) << _U(40)
    word |= _U(data[byte + np.uintp(6)]) << _U(48) | _U(data[byte + np.uintp(7)]) << _U(56)
    return word >> _U(at & 7)


@jit
def _read(data: Array, at: Int, k: Int, values: Array) -> Int:
    """Read what `_write` wrote from the bit `at`, as many as `values` has room for. Returns the bit after them.

    -1 if `data` is too short: its last `_BEYOND_BYTES` are looked at, but no number may begin there.
    """
    end = 8 * (data.size - _BEYOND_BYTES)
    word = _U(0)
    total = _FIRST << k
    for begin in range(0, values.size, 8):
        # Eight are no longer than what lies beyond.
        if at > end:
            return -1
        for i in range(begin, min(begin + 8, values.size)):
            # What the last look saw may hold this code too.
            if i & 1 == 0 or k > _PAIRED:
                word = _look(data, at)
            quotient = zeros_below(~word)
            if quotient < _ESCAPE:
                value = quotient << k | np.int64(word >> _U(quotient + 1)) & (1 << k) - 1
                at += quotient + 1 + k
                word >>= _U(quotient + 1 + k)
            else:
                value = np.int64(_look(data, at) >> _U(_ESCAPE)) & 0xFFFFFFFF
                at += _ESCAPE + 32
                word = _look(data, at)
            values[i] = value
            total += value
        k, total = _adapt(total)
    return at if at <= end else -1
