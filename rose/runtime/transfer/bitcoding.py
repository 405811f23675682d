"""What changes between two arrays, written as bits: the loops of the codec, compiled.

Of each array a *context* says how likely an element is to change: the exponent of its base (small weights move by an
optimiser's step more often than large ones), or one context for all. In each context

- whether an element changed is a run of the commoner answer and then the rarer one: the lengths of the runs are
  Rice codes whose parameter follows their mean;
- how far it moved, less one, is the same again: runs of "by one" (or of "by more") and then, for those that moved by
  more, a Rice code of the rest;
- its sign is one bit.

A run-length code of the rarer answer costs a few hundredths of a bit more than the entropy at any frequency, has no
tables, and adapts when a part of the array changes more than another.

Bits are packed least significant first into 32-bit words. A place in them is a number of bits. What is random (a sign,
a step up or down, whether a word is full) is computed and not branched on: a branch that is guessed wrong costs more
than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Array = npt.NDArray[Any]
#: Python's integers and NumPy's: compiled, they are the same.
Int = Any
_F = TypeVar("_F", bound=Callable[..., Any])

#: Contexts there can be: an exponent has at most 8 bits.
CONTEXTS = 256
#: A quotient this long is an escape: the value follows in 32 bits.
_ESCAPE = 20
#: The sum of eight values of which the parameter 0 is right.
_FIRST = 11
#: Times eight bytes that are compared in one go.
_ROWS = 1024
#: Ones at the low end of a byte.
_ONES = np.array([8 if byte == 255 else ((byte + 1) & ~byte).bit_length() - 1 for byte in range(256)], np.int64)


def jit(function: _F) -> _F:
    """Compile on first use, for any type of array, and keep it beside the source; without Python's lock."""
    return cast(_F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


@jit
def _put(out: Words, at: Int, acc: Int, bits: Int, value: Int, width: Int) -> tuple[Int, Int, Int]:
    """Append `width` <= 31 bits; `bits` < 32 of `acc` wait to be written."""
    acc |= value << bits
    bits += width
    out[at] = acc & 0xFFFFFFFF
    full = bits >> 5
    return at + full, acc >> (full << 5), bits & 31


@jit
def _put_rice(out: Words, at: Int, acc: Int, bits: Int, value: Int, k: Int) -> tuple[Int, Int, Int]:
    quotient = value >> k
    if quotient + k < 31 and quotient < _ESCAPE:
        code = (value & ((1 << k) - 1)) << (quotient + 1) | (1 << quotient) - 1
        return _put(out, at, acc, bits, code, quotient + 1 + k)
    if quotient < _ESCAPE:
        at, acc, bits = _put(out, at, acc, bits, (1 << quotient) - 1, quotient + 1)
        return _put(out, at, acc, bits, value & ((1 << k) - 1), k)
    at, acc, bits = _put(out, at, acc, bits, (1 << _ESCAPE) - 1, _ESCAPE)
    at, acc, bits = _put(out, at, acc, bits, value & 0xFFFF, 16)
    return _put(out, at, acc, bits, value >> 16, 16)


@jit
def _adapt(k: Int, total: Int, seen: Int, value: Int) -> tuple[Int, Int, Int]:
    """The next Rice parameter, and the sum and number of the values that it follows.

    Every eighth value 2**k moves towards their mean, to lie between it and its half; older ones count half as much.
    """
    total += value
    seen += 1
    if seen == 16:
        goal = total * 31 >> 9
        k += np.int64(goal >> (k + 1) != 0) - (np.int64(goal >> k == 0) & np.int64(k > 0))
        return k, total >> 1, 8
    return k, total, seen


@jit
def _look(words: Words, at: Int) -> Int:
    """At least 32 bits from the bit `at`; what lies above them means nothing."""
    word, low = at >> 5, at & 31
    return np.int64(words[word]) >> low | np.int64(words[word + 1]) << (32 - low)


@jit
def _get_rice(words: Words, at: Int, k: Int) -> tuple[Int, Int]:
    """A value, and the bit after it. Reads up to three words from `at`."""
    seen = _look(words, at)
    quotient = _ONES[seen & 255]
    if quotient == 8:
        quotient += _ONES[seen >> 8 & 255]
        if quotient == 16:
            quotient += _ONES[seen >> 16 & 255]
    if quotient >= _ESCAPE:
        at += _ESCAPE
        return _look(words, at) & 0xFFFFFFFF, at + 32
    at += quotient + 1
    if quotient + k < 31:
        seen >>= quotient + 1
    else:
        seen = _look(words, at)
    return quotient << k | (seen & ((1 << k) - 1)), at + k


@jit
def _ulp_order(bits: Int, half: Int) -> Int:
    """The bit pattern's place among all; `half` is 2**(bits - 1)."""
    negative = -np.int64(bits >= half)
    return bits ^ (negative & (half - 1) | half)


@jit
def _from_ulp_order(order: Int, half: Int) -> Int:
    negative = -np.int64(order < half)
    return order ^ (negative & (half - 1) | half)


@jit
def _step(base: Int, new: Int, half: Int) -> Int:
    """How far `new` is from `base` in ULP order, modulo 2 * half, in [-half, half)."""
    return (_ulp_order(new, half) - _ulp_order(base, half) + half & 2 * half - 1) - half


@jit
def _moved(base: Int, step: Int, half: Int) -> Int:
    """What `_step` led to."""
    return _from_ulp_order(_ulp_order(base, half) + step & 2 * half - 1, half)


@jit
def collect(base: Array, new: Array, base_rows: Array, new_rows: Array, half: Int, gaps: Array, steps: Array) -> Int:
    """Of each changed element: how many unchanged ones lie before it, and its step. Returns how many changed.

    `base_rows` and `new_rows` are the same memory, eight bytes at once, but for an end that does not fill eight.
    """
    lanes = 8 // base.itemsize
    hits = np.empty(_ROWS + 1, np.int32)
    positions = np.empty(_ROWS * lanes + 1, np.int64)
    found = 0
    before = -1
    # In parts that stay in the nearest cache: which eight bytes differ, which elements of those, and by how much.
    for begin in range(0, base_rows.size + 1, _ROWS):
        end = min(begin + _ROWS, base_rows.size)
        hit = 0
        for row in range(begin, end):
            hits[hit] = row
            hit += base_rows[row] != new_rows[row]
        part = 0
        for number in range(hit):
            first = np.int64(hits[number]) * lanes
            for i in range(first, first + lanes):
                positions[part] = i
                part += base[i] != new[i]
        if end == base_rows.size:
            for i in range(end * lanes, base.size):
                positions[part] = i
                part += base[i] != new[i]
        for number in range(part):
            i = positions[number]
            gaps[found] = i - before - 1
            steps[found] = _step(np.int64(base[i]), np.int64(new[i]), half)
            before = i
            found += 1
        if end == base_rows.size:
            break
    return found


@jit
def collect_in_contexts(
    base: Array, new: Array, half: Int, shift: Int, mask: Int, contexts: Array, gaps: Array, steps: Array, sizes: Array,
    counts: Array,
) -> Int:  # fmt: skip
    """Of each changed element: its context, how many unchanged ones of that lie before it, and its step.

    `sizes` counts the elements of each context, `counts` those that changed. Returns how many changed.
    """
    before = np.full(CONTEXTS, -1, np.int64)
    found = 0
    for i in range(base.size):
        context = (np.int64(base[i]) >> shift) & mask
        at = sizes[context]
        if base[i] != new[i]:
            contexts[found] = context
            gaps[found] = at - before[context] - 1
            before[context] = at
            counts[context] += 1
            steps[found] = _step(np.int64(base[i]), np.int64(new[i]), half)
            found += 1
        sizes[context] = at + 1
    return found


@jit
def by_context(contexts: Array, gaps: Array, steps: Array, starts: Array, own_gaps: Array, own_steps: Array) -> None:
    """Put the changes of each context together, in their order; `starts` has where each begins, and is moved on."""
    for i in range(contexts.size):
        to = starts[contexts[i]]
        own_gaps[to] = gaps[i]
        own_steps[to] = steps[i]
        starts[contexts[i]] = to + 1


@jit
def count_more(steps: Array) -> Int:
    """How many moved by more than one."""
    more = 0
    for i in range(steps.size):
        more += np.abs(np.int64(steps[i])) > 1
    return more


@jit
def write_places(gaps: Array, size: Int, inverted: bool, k: Int, out: Words, at: Int) -> Int:
    """Write where the changes of one context are among its `size` elements; returns where in `out` the words end.

    `inverted`: runs of changed elements, each ended by one that is not. The last run ends with the array.
    """
    acc = bits = 0
    total, seen = _FIRST << k, 8
    left = size
    if not inverted:
        for i in range(gaps.size):
            gap = np.int64(gaps[i])
            at, acc, bits = _put_rice(out, at, acc, bits, gap, k)
            k, total, seen = _adapt(k, total, seen, gap)
            left -= gap + 1
        run = left
    else:
        run = 0
        for i in range(gaps.size):
            for _ in range(np.int64(gaps[i])):
                at, acc, bits = _put_rice(out, at, acc, bits, run, k)
                k, total, seen = _adapt(k, total, seen, run)
                run = 0
                left -= 1
            run += 1
            left -= 1
        for _ in range(left):
            at, acc, bits = _put_rice(out, at, acc, bits, run, k)
            k, total, seen = _adapt(k, total, seen, run)
            run = 0
    at, acc, bits = _put_rice(out, at, acc, bits, run, k)
    out[at] = acc
    return at + (bits > 0)


@jit
def write_lengths(steps: Array, inverted: bool, k: Int, out: Words, at: Int) -> Int:
    """Write how far each of the elements of one context moved, less one; returns where in `out` the words end.

    Each run (of ones, or `inverted` of more) comes before the elements it is about; the last ends with them.
    """
    acc = bits = 0
    total, seen = _FIRST << k, 8
    rest_k, rest_total, rest_seen = 0, _FIRST, 8
    i = 0
    while True:
        begin = i
        while i < steps.size and (np.abs(np.int64(steps[i])) > 1) == inverted:
            i += 1
        at, acc, bits = _put_rice(out, at, acc, bits, i - begin, k)
        k, total, seen = _adapt(k, total, seen, i - begin)
        # The rarer element that ends the run is in it, unless the run ends with the array.
        end = i >= steps.size
        i += not end
        for j in range(begin if inverted else i - 1, i):
            rest = np.abs(np.int64(steps[j])) - 2
            if rest >= 0:
                at, acc, bits = _put_rice(out, at, acc, bits, rest, rest_k)
                rest_k, rest_total, rest_seen = _adapt(rest_k, rest_total, rest_seen, rest)
        if end:
            out[at] = acc
            return at + (bits > 0)


@jit
def read(
    new: Array, half: Int, words: Words, ends: Array, inverted: bool, k: Array, signs: Array, changed: int
) -> bool:
    """Move the elements of `new`, which holds the base, as one context says. False if the words say something else.

    `ends` are the bits where the places and the lengths end, `k` the parameters of both; `inverted` is of the lengths.
    At least two words follow the last.
    """
    place, length = 0, ends[0]
    k0, k1, k2 = k[0], k[1], 0
    total0, total1, total2 = _FIRST << k0, _FIRST << k1, _FIRST
    seen0 = seen1 = seen2 = 8
    run = -1
    i = -1
    for found in range(changed):
        gap, place = _get_rice(words, place, k0)
        k0, total0, seen0 = _adapt(k0, total0, seen0, gap)
        i += gap + 1
        if i >= new.size or place > ends[0]:
            return False
        if run < 0:
            if length >= ends[1]:
                return False
            run, length = _get_rice(words, length, k1)
            k1, total1, seen1 = _adapt(k1, total1, seen1, run)
        far = 1
        if (run > 0) == inverted:
            if length >= ends[1]:
                return False
            rest, length = _get_rice(words, length, k2)
            k2, total2, seen2 = _adapt(k2, total2, seen2, rest)
            far = rest + 2
        run -= 1
        sign = -np.int64(signs[found >> 3] >> (found & 7) & 1)
        new[i] = _moved(np.int64(new[i]), (far ^ sign) - sign, half)
    left, place = _get_rice(words, min(place, ends[0]), k0)
    return bool(i + 1 + left == new.size and place <= ends[0] and length <= ends[1])


@jit
def _next(words: Words, at: Array, ends: Array, state: Array, of: Int, c: Int) -> Int:
    """The next value of context `c`: 0 of its places, 1 of its lengths, 2 of lengths less two. -1 if there is none."""
    stream = min(of, 1)
    if at[stream, c] >= ends[stream, c]:
        return -1
    value, at[stream, c] = _get_rice(words, at[stream, c], state[of, 0, c])
    state[of, 0, c], state[of, 1, c], state[of, 2, c] = _adapt(state[of, 0, c], state[of, 1, c], state[of, 2, c], value)
    return value


@jit
def read_in_contexts(
    new: Array, half: Int, shift: Int, mask: Int, words: Words, starts: Array, ends: Array, inverted: Array, k: Array,
    signs: Array, changed: Int,
) -> bool:  # fmt: skip
    """As `read`, for several contexts: row 0 of the arrays is about places, row 1 about lengths, one column for each.

    A context without changes has `k` -1.
    """
    at = starts.copy()
    # Parameter, sum and number of the values so far, as `_adapt` has them.
    state = np.zeros((3, 3, CONTEXTS), np.int64)
    # Elements until the answer is the rarer one; with most of them unchanged this is all that is looked at.
    until = np.full(CONTEXTS, 2**62, np.int64)
    changes_until = np.zeros(CONTEXTS, np.int64)
    run = np.full(CONTEXTS, -1, np.int64)
    for c in range(CONTEXTS):
        if k[0, c] >= 0:
            state[0, 0, c], state[1, 0, c] = k[0, c], k[1, c]
            state[:, 1, c] = _FIRST << state[:, 0, c]
            state[:, 2, c] = 8
            changes_until[c] = _next(words, at, ends, state, 0, c)
            until[c] = 0 if inverted[0, c] else changes_until[c]
    found = 0
    for i in range(new.size):
        c = (np.int64(new[i]) >> shift) & mask
        left = until[c]
        if left > 0:
            until[c] = left - 1
            continue
        if inverted[0, c] and changes_until[c] > 0:
            changes_until[c] -= 1
        else:
            gap = _next(words, at, ends, state, 0, c)
            if inverted[0, c]:
                changes_until[c] = gap
                continue
            until[c] = gap
        if run[c] < 0:
            run[c] = _next(words, at, ends, state, 1, c)
        far = 1 if (run[c] > 0) != inverted[1, c] else _next(words, at, ends, state, 2, c) + 2
        run[c] -= 1
        if found >= changed or until[c] < 0 or run[c] < -1 or (far == 1 and (run[c] >= 0) == inverted[1, c]):
            return False
        sign = -np.int64(signs[found >> 3] >> (found & 7) & 1)
        new[i] = _moved(np.int64(new[i]), (far ^ sign) - sign, half)
        found += 1
    return found == changed and not (at > ends).any()
