"""The codes of `fast` and `small`. Changes are in groups: `fast` has one group, `small` has several (`grouping`). A
block begins with three numbers per group: the Rice parameter `k` of its gaps, its changes, and its far steps. For each
change there is the gap (the number of the group's unchanged elements just before it), and the step (its change in ULPs,
see `codec`). The signs of a group's steps are stored first, then the gaps, then the lengths.

Steps of length 1 are near, longer steps are far. If over half of the steps are far, the length - 1 of every step is
stored. Otherwise each far step has two numbers: how many near steps come just before it, and its length - 2. Numbers
are Rice codes, whose `k` adapts to past numbers. Bits are packed lowest first. Groups begin at whole bytes."""

import numpy as np
import numpy.typing as npt

from rose.transfer.codec.compiled import Array, Int, jit, zeros_above, zeros_below
from rose.transfer.errors import TransferError

Words = npt.NDArray[np.uint32]
Steps = npt.NDArray[np.int32]

_BEYOND_BYTES = 72  # `_read` may read this many bytes past the end; their content does not matter.
_ESCAPE = 20  # A quotient of this length is an escape: the value follows in 32 bits.
_PAIRED = 7  # Up to this parameter, `_look` returns enough bits for two codes that are no escapes.
_LARGEST = 31  # Up to this parameter, `_look` returns enough bits for any code.
_NUMBERS = 3  # The first parameter for the numbers about groups.
_FIRST = 11  # The sum of eight values for which the parameter 0 is right.
_SHORT, _SENSELESS = -1, -2  # From `_read_groups`: the block ends before its numbers, or its numbers make no sense.
_U = np.uint64


def encode(counts: Array, gaps: Words, steps: Steps) -> bytes:
    """Encode groups of changes, which follow each other in `gaps` and `steps`. `counts` has their lengths."""
    numbers = np.zeros((3, counts.size), np.uint32)
    numbers[1] = counts
    words = np.empty(5 * gaps.size + 128, np.uint32)
    in_bytes = words.view(np.uint8)
    code = in_bytes[: _write_groups(numbers, gaps, steps, words) >> 3].tobytes()
    return in_bytes[: _write(numbers.reshape(-1), _NUMBERS, words, 0) + 7 >> 3].tobytes() + code


def decode(block: memoryview, groups: int, changed: int) -> tuple[Array, Words, Steps]:
    """Return what was encoded. The gaps may go beyond the last element. Raises TransferError."""
    data = np.frombuffer(bytes(block) + bytes(_BEYOND_BYTES), np.uint8)
    numbers, gaps, steps = np.empty((3, groups), np.uint32), np.empty(changed, np.uint32), np.empty(changed, np.int32)
    end = _read_groups(data, numbers, gaps, steps)
    if end < 0:
        why = "ends before its numbers" if end == _SHORT else f"has senseless numbers for {changed} changes"
        raise TransferError(f"encoded array has a block of {len(block)} bytes that {why}")
    if end != 8 * len(block):
        raise TransferError(f"encoded array has {len(block)} bytes for {changed} changes, expected {end // 8}")
    return numbers[1], gaps, steps


@jit
def _parameter(size: Int, events: Int) -> Int:
    return 63 - zeros_above(_U((size - events) // (events + 1) | 1))


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
def _write_groups(numbers: Words, gaps: Words, steps: Steps, out: Words) -> Int:
    """Write all groups, whose lengths are in `numbers[1]`. Write the parameter of a group's gaps into `numbers[0]`, and
    its far steps into `numbers[2]`. Return the next free bit, at a whole byte."""
    at: Int = 0
    end: Int = 0
    for group in range(numbers.shape[1]):
        begin, end = end, end + np.int64(numbers[1, group])
        some = gaps[begin:end]
        between, far = np.empty(some.size + 1, np.uint32), np.empty(some.size + 1, np.uint32)
        far_count = _split(steps[begin:end], out.view(np.uint8)[at >> 3 :], between, far)
        k = _parameter(np.int64(some.sum()) + some.size, some.size)
        at = _write(some, k, out, at + (some.size + 7 & ~7))
        if far_count < some.size:
            at = _write(between[:far_count], _parameter(some.size, far_count), out, at)
        at = _write(far[:far_count], 0, out, at) + 7 & ~7
        numbers[0, group], numbers[2, group] = k, far_count
    return at


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
def _read_groups(data: Array, numbers: Words, gaps: Words, steps: Steps) -> Int:
    """Decode a block into `numbers`, `gaps` and `steps`. Return the next bit's place, or `_SHORT` or `_SENSELESS`."""
    at = _read(data, 0, _NUMBERS, numbers.reshape(-1))
    end: Int = 0
    for group in range(numbers.shape[1]):
        k, count, far_count = np.int64(numbers[0, group]), np.int64(numbers[1, group]), np.int64(numbers[2, group])
        begin, end = end, end + count
        if at < 0:
            return _SHORT
        if k > _LARGEST or far_count > count or end > gaps.size:
            return _SENSELESS
        at = at + 7 & ~7
        signs, far, between = data[at >> 3 :], np.empty(far_count, np.uint32), np.empty(far_count, np.uint32)
        at = _read(data, at + (count + 7 & ~7), k, gaps[begin:end])
        if at >= 0 and far_count < count:
            at = _read(data, at, _parameter(count, far_count), between)
        if at >= 0:
            at = _read(data, at, 0, far)
        if at >= 0 and not _join(signs, between, far, steps[begin:end]):
            return _SENSELESS
    if at < 0:
        return _SHORT
    return at + 7 & ~7 if end == gaps.size else _SENSELESS
