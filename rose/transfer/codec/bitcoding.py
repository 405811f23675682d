"""The encoding `fast`. For each changed element it has the gap (the number of unchanged elements just before it), and
the step (its change in ULPs, see `codec`). The signs of the steps are stored first, then the gaps, then the lengths.

Steps of length 1 are near, longer steps are far. If over half of the steps are far, the length - 1 of every step is
stored. Otherwise each far step has two numbers: how many near steps come just before it, and its length - 2. Numbers
are Rice codes, whose parameter `k` adapts to past numbers. Bits are packed lowest first. Parts begin at whole bytes."""

import threading

import numpy as np
import numpy.typing as npt

from rose.transfer.codec.compiled import Array, Int, jit, zeros_above, zeros_below
from rose.transfer.codec.header import packed_number, take_number
from rose.transfer.errors import TransferError

Words = npt.NDArray[np.uint32]
Steps = npt.NDArray[np.int32]

_BEYOND_BYTES = 72  # `_read` may read this many bytes past the end; their content does not matter.
_ESCAPE = 20  # A quotient of this length is an escape: the value follows in 32 bits.
_PAIRED = 7  # Up to this parameter, `_look` returns enough bits for two codes that are no escapes.
_LARGEST = 31  # Up to this parameter, `_look` returns enough bits for any code.
_FIRST = 11  # The sum of eight values for which the parameter 0 is right.
_SHORT, _SENSELESS = -1, -2  # From `_read_all`: the block ends before its numbers, or its numbers make no sense.
_U = np.uint64
_own = threading.local()


def encode(elements: int, gaps: Words, steps: Steps) -> bytes:
    changed = gaps.size
    words, between, far = _room(changed)
    far_count = _split(steps, words.view(np.uint8), between, far)
    k, k_between = _parameter(elements, changed), _parameter(changed, far_count)
    bits = _write_all(gaps, between[:far_count], far[:far_count], k, k_between, words)
    return packed_number(far_count) + words.view(np.uint8)[: -(-bits // 8)].tobytes()


def decode(block: memoryview, elements: int, changed: int) -> tuple[Words, Steps]:
    """Return the gaps and steps of `changed` changes. The gaps may go beyond the last element. Raises TransferError."""
    far_count, signs_from = take_number(block, 0)
    if far_count > changed or signs_from - (-changed // 8) > len(block):
        raise TransferError(f"encoded array has {len(block)} bytes for {changed} changes and {far_count} far steps")
    data = np.frombuffer(bytes(block) + bytes(_BEYOND_BYTES), np.uint8)
    gaps, steps = np.empty(changed, np.uint32), np.empty(changed, np.int32)
    _, between, far = _room(far_count)
    k, k_between = _parameter(elements, changed), _parameter(changed, far_count)
    end = _read_all(data, signs_from, k, k_between, gaps, steps, between[:far_count], far[:far_count])
    if end < 0:
        raise TransferError(
            f"encoded array has a block of {len(block)} bytes "
            + ("that ends before its numbers" if end == _SHORT else f"with a far step past its {changed} changes")
        )
    if end != 8 * len(block):
        raise TransferError(f"encoded array has {len(block)} bytes for {changed} changes, expected {end // 8}")
    return gaps, steps


def _parameter(size: int, events: int) -> int:
    mean = (size - events) // (events + 1)
    return max(mean.bit_length() - 1, 0)


def _room(changed: int) -> tuple[Words, Words, Words]:
    if changed > getattr(_own, "changed", -1):
        _own.changed = 2 * changed
        _own.words = np.empty(5 * _own.changed + 8, np.uint32)
        _own.between, _own.far = np.empty((2, _own.changed + 1), np.uint32)
    return _own.words, _own.between, _own.far


@jit
def _split(steps: Steps, signs: Array, between: Words, far: Words) -> Int:
    byte: Int = 0
    far_count: Int = 0
    last: Int = -1
    for i in range(steps.size):
        step = np.int64(steps[i])
        byte |= np.int64(step < 0) << (i & 7)
        if i & 7 == 7:
            signs[i >> 3] = byte
            byte = 0
        between[far_count] = i - last - 1  # Written for a near step too: the buffer has room for one more.
        far[far_count] = abs(step) - 2
        if abs(step) > 1:
            last = i
            far_count += 1
    if steps.size & 7:
        signs[steps.size >> 3] = byte
    if 2 * far_count <= steps.size:
        return far_count
    for i in range(steps.size):
        far[i] = abs(np.int64(steps[i])) - 1
    return steps.size


@jit
def _join(signs: Array, between: Words, far: Words, steps: Steps) -> bool:
    for i in range(steps.size):
        steps[i] = 1 - 2 * (np.int64(signs[i >> 3]) >> (i & 7) & 1)
    if far.size == steps.size:
        for i in range(steps.size):
            steps[i] *= np.int64(far[i]) + 1
        return True
    place: Int = -1
    for number in range(far.size):
        place += np.int64(between[number]) + 1
        if place >= steps.size:
            return False
        steps[place] *= np.int64(far[number]) + 2
    return True


@jit
def _adapt(total: Int) -> tuple[Int, Int]:
    """Return the Rice parameter `k` for the next eight numbers, and half of `total`. `total` is a sum of the numbers so
    far: the newest eight count in full, the eight before by half, and so on."""
    return min(63 - zeros_above(_U(total * 31 >> 9 | 1)), _LARGEST), total >> 1


@jit
def _put(out: Words, at: Int, acc: Int, bits: Int, value: Int, width: Int) -> tuple[Int, Int, Int]:
    """Append `value`, a code of `width` bits, to `out`. `acc` has the last `bits` bits, for the unfinished word `at`.
    Return the new `at`, `acc` and `bits`."""
    acc |= _U(value) << _U(bits)
    bits += width
    out[at] = acc & _U(0xFFFFFFFF)
    full = bits >> 5
    return at + full, acc >> _U(full << 5), bits & 31


@jit
def _write(values: Array, k: Int, out: Words, at: Int) -> Int:
    """Write `values` into `out`, starting at bit `at`. Return the next free bit. A number takes at most two words."""
    bits = at & 31
    at >>= 5
    acc = _U(out[at]) & (_U(1) << _U(bits)) - _U(1)
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
def _write_all(gaps: Words, between: Words, far: Words, k: Int, k_between: Int, out: Words) -> Int:
    at = _write(gaps, k, out, gaps.size + 7 & ~7)
    if far.size < gaps.size:
        at = _write(between, k_between, out, at + 7 & ~7)
    return _write(far, 0, out, at + 7 & ~7)


@jit
def _look(data: Array, at: Int) -> Int:
    """Return a word of at least 57 bits that starts at bit `at`. When compiled, this is a single read from memory."""
    byte = np.uintp(at) >> np.uintp(3)
    word = _U(data[byte]) | _U(data[byte + np.uintp(1)]) << _U(8)
    word |= _U(data[byte + np.uintp(2)]) << _U(16) | _U(data[byte + np.uintp(3)]) << _U(24)
    word |= _U(data[byte + np.uintp(4)]) << _U(32) | _U(data[byte + np.uintp(5)]) << _U(40)
    word |= _U(data[byte + np.uintp(6)]) << _U(48) | _U(data[byte + np.uintp(7)]) << _U(56)
    return word >> _U(at & 7)


@jit
def _read(data: Array, at: Int, k: Int, values: Array) -> Int:
    """Fill `values` with numbers that `_write` wrote. Return the next bit's place, or -1 if `data` ends too early."""
    end = 8 * (data.size - _BEYOND_BYTES)
    word = _U(0)
    total = _FIRST << k
    for begin in range(0, values.size, 8):
        if at > end:  # Eight numbers are no longer than `_BEYOND_BYTES`.
            return -1
        for i in range(begin, min(begin + 8, values.size)):
            if i & 1 == 0 or k > _PAIRED:  # Otherwise the last word holds this code too.
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


@jit
def _read_all(
    data: Array, signs_from: Int, k: Int, k_between: Int, gaps: Words, steps: Steps, between: Words, far: Words
) -> Int:
    """Decode a block into `gaps` and `steps`. Return the place of the next bit, or `_SHORT` or `_SENSELESS`."""
    signs_to = signs_from + (gaps.size + 7 >> 3)
    at = _read(data, 8 * signs_to, k, gaps)
    if at >= 0 and far.size < gaps.size:
        at = _read(data, at + 7 & ~7, k_between, between)
    if at >= 0:
        at = _read(data, at + 7 & ~7, 0, far)
    if at < 0:
        return _SHORT
    return at + 7 & ~7 if _join(data[signs_from:signs_to], between, far, steps) else _SENSELESS
