"""Compiled functions that find and apply differences between two arrays of bit patterns."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from rose.transfer.codec.compiled import Array, Int, difference_mask, instruction, jit, ones, zeros_below

_FOUND_AT_ONCE = 4096  # Elements compared before the results are read: both parts fit the nearest cache.
_MOVED_AT_ONCE = 512  # The places of so many elements are added up first, so that no step waits for a place.
_NOWHERE = np.int64(1) << 62
GROUPS = 16  # Elements have this many groups, so that a mask for each of them costs little.
_U = np.uint64


@instruction
def _group_mask(_: Any, groups: Any, at: Any, group: Any) -> Any:
    """Return 64 bits for the 64 elements from `at` on. A bit is set if its element is in `group`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        many = ir.VectorType(ir.IntType(8), 64)
        place = builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        loaded = builder.load(builder.bitcast(place, many.as_pointer()), align=1)
        first = builder.insert_element(ir.Constant(many, ir.Undefined), args[2], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), None)
        same = builder.shuffle_vector(first, ir.Constant(many, ir.Undefined), zeros)
        return builder.bitcast(builder.icmp_unsigned("==", loaded, same), ir.IntType(64))

    return types.uint64(groups, types.uintp, types.uint8), code


@instruction
def _copy(_: Any, base: Any, new: Any, begin: Any, end: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = []
        for kind, array in zip(signature.args, args[:2], strict=False):
            places.append(builder.gep(context.make_array(kind)(context, builder, array).data, [args[2]]))
        count = builder.sub(args[3], args[2])
        cgutils.raw_memcpy(builder, places[1], places[0], count, signature.args[0].dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(base, new, types.intp, types.intp), code


@jit
def _ulp_order(bits: Int, half: Int) -> Int:
    """Return the rank of a bit pattern by the value of its float. `half` is 2**(bits - 1)."""
    negative = -np.int64(bits >= half)
    return bits ^ (negative & (half - 1) | half)


@jit
def _from_ulp_order(order: Int, half: Int) -> Int:
    negative = -np.int64(order < half)
    return order ^ (negative & (half - 1) | half)


@jit
def count(base: Array, new: Array) -> Int:
    changed: Int = 0
    for at in range(0, base.size - 63, 64):
        changed += ones(difference_mask(base, new, np.uintp(at)))
    for i in range(base.size & ~63, base.size):
        changed += base[i] != new[i]
    return changed


@jit
def find(base: Array, new: Array, half: Int, gaps: Array, steps: Array) -> Int:
    """Find the elements in which `new` differs from `base`. Write each element's step, in [-half, half), and its gap:
    the number of equal elements just before it. Return the number of changed elements."""
    places = np.empty(_FOUND_AT_ONCE + 4, np.int64)
    filled = 0
    before = -1
    for begin in range(0, base.size, _FOUND_AT_ONCE):
        old, now = base[begin : begin + _FOUND_AT_ONCE], new[begin : begin + _FOUND_AT_ONCE]
        count = 0
        for at in range(0, old.size - 63, 64):
            differ = difference_mask(old, now, np.uintp(at))
            end = count + ones(differ)
            for i in range(4):  # There are seldom more than four, so four are always written.
                places[count + i] = at + zeros_below(differ)
                differ &= differ - _U(1)
            for i in range(count + 4, end):
                places[i] = at + zeros_below(differ)
                differ &= differ - _U(1)
            count = end
        for i in range(old.size & ~63, old.size):
            places[count] = i
            count += old[i] != now[i]
        for number in range(count):
            i = places[number]
            step = _ulp_order(np.int64(now[i]), half) - _ulp_order(np.int64(old[i]), half)
            gaps[filled] = begin + i - before - 1
            steps[filled] = (step + half & 2 * half - 1) - half
            before = begin + i
            filled += 1
    return filled


@jit
def move(base: Array, new: Array, half: Int, gaps: Array, steps: Array, sign: Int) -> bool:
    """Copy `base` to `new`, and add `sign` * step to each changed element. Return False if the gaps go past the end."""
    places = np.empty(_MOVED_AT_ONCE, np.int64)
    copied: Int = base.size if new.ctypes.data == base.ctypes.data else 0
    place: Int = -1
    for begin in range(0, gaps.size, _MOVED_AT_ONCE):
        some, of_some = gaps[begin : begin + _MOVED_AT_ONCE], steps[begin : begin + _MOVED_AT_ONCE]
        for number in range(some.size):
            place += np.int64(some[number]) + 1
            places[number] = place
        if place >= new.size:
            return False
        if copied <= place:
            _copy(base, new, copied, place + 1)
            copied = place + 1
        for number in range(some.size):
            i = np.uintp(places[number])
            order = _ulp_order(np.int64(new[i]), half) + sign * np.int64(of_some[number])
            new[i] = _from_ulp_order(order & 2 * half - 1, half)
    _copy(base, new, copied, new.size)
    return True


@jit
def pick(base: Array, new: Array, places: Array, values: Array) -> Int:
    """Write each changed element's position and new value. Return how many changed, or -1 if there is no room."""
    count = 0
    for at in range(0, base.size - 63, 64):
        differ = difference_mask(base, new, np.uintp(at))
        if count + ones(differ) > places.size:
            return -1
        while differ:
            places[count] = at + zeros_below(differ)
            values[count] = new[np.uintp(places[count])]
            differ &= differ - _U(1)
            count += 1
    for i in range(base.size & ~63, base.size):
        if base[i] != new[i]:
            if count == places.size:
                return -1
            places[count], values[count] = i, new[i]
            count += 1
    return count


@jit
def _find_groups(base: Array, shift: Int, mask: Int, low: Int, groups: Array) -> None:
    """Write each element's group into `groups`: its exponent minus `low`, at least 0 and at most GROUPS - 1. Then fill
    `groups` up to a multiple of 64 with GROUPS, which is not a group."""
    least, most = np.uint8(low), np.uint8(min(low + GROUPS - 1, 255))
    if shift == 7:  # For bfloat16: a constant shift is several times faster.
        for i in range(base.size):
            groups[i] = base[i] >> np.uint8(7) & np.uint8(255)
    else:
        for i in range(base.size):
            groups[i] = np.int64(base[i]) >> shift & mask
    for i in range(base.size):
        groups[i] = min(max(groups[i], least), most) - least
    groups[base.size : base.size + 63 & ~63] = GROUPS


@jit
def spread(
    base: Array, shift: Int, mask: Int, low: Int, gaps: Array, steps: Array, apart: Array, of_apart: Array
) -> Array:
    """Sort the changes by group (see `_find_groups`), and return their number in each group. Write each change's step
    into `of_apart`, and its distance from the group's previous change into `apart`: the group's elements between."""
    counts = np.zeros(GROUPS, np.int64)
    i: Int = -1
    for gap in gaps:
        i += np.int64(gap) + 1
        exponent = np.int64(base[np.uintp(i)]) >> shift & mask
        counts[min(max(exponent - low, 0), GROUPS - 1)] += 1
    used = np.flatnonzero(counts)
    free = np.cumsum(counts) - counts
    since, masks = np.zeros(GROUPS, np.int64), np.empty(GROUPS, np.uint64)
    own = np.empty(_FOUND_AT_ONCE, np.uint8)
    number = 0
    place = np.int64(gaps[0]) if gaps.size else _NOWHERE
    for begin in range(0, base.size, _FOUND_AT_ONCE):
        some = base[begin : begin + _FOUND_AT_ONCE]
        _find_groups(some, shift, mask, low, own)
        for at in range(0, some.size, 64):
            for group in used:
                masks[group] = _group_mask(own, np.uintp(at), np.uint8(group))
            while place < begin + at + 64:
                here = own[np.uintp(place - begin)]
                bit = _U(1) << _U(place - begin - at)
                apart[free[here]], of_apart[free[here]] = since[here] + ones(masks[here] & bit - _U(1)), steps[number]
                free[here] += 1
                since[here] = 0
                masks[here] &= ~((bit << _U(1)) - _U(1))
                number += 1
                place = place + np.int64(gaps[number]) + 1 if number < gaps.size else _NOWHERE
            for group in used:
                since[group] += ones(masks[group])
    return counts


@jit
def collect(
    base: Array,
    new: Array,
    shift: Int,
    mask: Int,
    low: Int,
    half: Int,
    crossing: bool,
    counts: Array,
    apart: Array,
    steps: Array,
) -> bool:
    """Copy `base` to `new`, and apply the changes that `spread` sorted: `counts` of each group. If `crossing`, `cross`
    wrote the steps. Return False if a change does not fit."""
    ends = np.cumsum(counts)
    left, next_change = np.full(GROUPS, _NOWHERE), ends - counts
    own = np.empty(_FOUND_AT_ONCE, np.uint8)
    used = np.flatnonzero(counts)
    for group in used:
        left[group] = apart[next_change[group]]
    for begin in range(0, base.size, _FOUND_AT_ONCE):
        some = base[begin : begin + _FOUND_AT_ONCE]
        _find_groups(some, shift, mask, low, own)
        if new.ctypes.data != base.ctypes.data:
            _copy(base, new, begin, begin + some.size)
        for at in range(0, some.size, 64):
            for group in used:
                same = _group_mask(own, np.uintp(at), np.uint8(group))
                while left[group] < ones(same):
                    for _ in range(left[group]):
                        same &= same - _U(1)
                    i = np.uintp(begin + at + zeros_below(same))
                    same &= same - _U(1)
                    number = next_change[group]
                    next_change[group] = number + 1
                    left[group] = np.int64(apart[number + 1]) if number + 1 < ends[group] else _NOWHERE
                    bits, step = np.int64(new[i]), np.int64(steps[number])
                    if crossing:
                        new[i] = bits ^ (step >> 1 & half - 1 | (step & 1) * half)
                    else:
                        new[i] = _from_ulp_order(_ulp_order(bits, half) + step & 2 * half - 1, half)
                left[group] -= ones(same)
    return bool((next_change == ends).all())


@jit
def cross(base: Array, new: Array, half: Int, gaps: Array, steps: Array) -> bool:
    """If more than a quarter of the changes flip the sign, write the differing bits into `steps` and return True."""
    i: Int = -1
    crossings = 0
    for number in range(gaps.size):
        i += np.int64(gaps[number]) + 1
        crossings += np.int64(base[np.uintp(i)] ^ new[np.uintp(i)]) >= half
    if 4 * crossings <= gaps.size:
        return False
    i = -1
    for number in range(gaps.size):
        i += np.int64(gaps[number]) + 1
        differ = np.int64(base[np.uintp(i)] ^ new[np.uintp(i)])
        step = (differ & half - 1) << 1 | np.int64(differ >= half)
        steps[number] = (step + half & 2 * half - 1) - half
    return True
