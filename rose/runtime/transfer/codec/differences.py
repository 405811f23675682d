"""Compiled functions that find, apply and merge differences between two arrays of bit patterns. They compare 64
elements at once, and count without branches."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from rose.runtime.transfer.codec.compiled import Array, Int, instruction, jit, ones, zeros_below

_FOUND_AT_ONCE = 4096  # Elements compared before the results are read: both parts fit the nearest cache.
_MOVED_AT_ONCE = 512  # The places of so many elements are added up first, so that no step waits for a place.
_NOWHERE = np.int64(1) << 62
GROUPS = 256  # Elements have at most this many groups.
_U = np.uint64


@instruction
def _differ(_: Any, base: Any, new: Any, at: Any) -> Any:
    """Return 64 bits for the 64 elements from `at` on. A bit is set if its element differs. Bounds are not checked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = []
        for kind, array in zip(signature.args, args[:2], strict=False):
            many = ir.VectorType(context.get_data_type(kind.dtype), 64)
            place = builder.gep(context.make_array(kind)(context, builder, array).data, [args[2]])
            loaded.append(builder.load(builder.bitcast(place, many.as_pointer()), align=kind.dtype.bitwidth // 8))
        return builder.bitcast(builder.icmp_unsigned("!=", *loaded), ir.IntType(64))

    return types.uint64(base, new, types.uintp), code


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
    """Return the rank of a bit pattern in ULP order. `half` is 2**(bits - 1)."""
    negative = -np.int64(bits >= half)
    return bits ^ (negative & (half - 1) | half)


@jit
def _from_ulp_order(order: Int, half: Int) -> Int:
    negative = -np.int64(order < half)
    return order ^ (negative & (half - 1) | half)


@jit
def find(base: Array, new: Array, half: Int, gaps: Array, steps: Array) -> Int:
    """Write the step of each changed element, in [-half, half), and the gap before the element. Return the number of
    changes. `gaps` and `steps` need room for every element."""
    places = np.empty(_FOUND_AT_ONCE + 4, np.int64)
    filled = 0
    before = -1
    for begin in range(0, base.size, _FOUND_AT_ONCE):
        old, now = base[begin : begin + _FOUND_AT_ONCE], new[begin : begin + _FOUND_AT_ONCE]
        count = 0
        for at in range(0, old.size - 63, 64):
            differ = _differ(old, now, np.uintp(at))
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
    """Copy `base` to `new`, and move the elements by `sign` times the steps. `sign` is 1, or -1 to undo the steps.
    Return False if the gaps lead past the end."""
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
def merge(first: tuple[Array, Array], second: tuple[Array, Array], half: Int, gaps: Array, steps: Array) -> Int:
    """Merge the changes `first` and then `second` into `gaps` and `steps`. Return the number of steps."""
    count = i = j = 0
    before: Int = -1
    place = np.int64(first[0][0]) if first[0].size else _NOWHERE
    other = np.int64(second[0][0]) if second[0].size else _NOWHERE
    while min(place, other) < _NOWHERE:
        at = min(place, other)
        step: Int = 0
        if place == at:
            step += np.int64(first[1][i])
            i += 1
            place = place + np.int64(first[0][i]) + 1 if i < first[0].size else _NOWHERE
        if other == at:
            step += np.int64(second[1][j])
            j += 1
            other = other + np.int64(second[0][j]) + 1 if j < second[0].size else _NOWHERE
        step = (step + half & 2 * half - 1) - half
        if step:  # A step of 0 restored the element.
            gaps[count] = at - before - 1
            steps[count] = step
            before = at
            count += 1
    return count


@jit
def pick(base: Array, new: Array, places: Array, values: Array) -> Int:
    """Write the positions of changed elements in ascending order, and their new values. Return the number of changed
    elements, or -1 if the arrays have too little room."""
    count = 0
    for at in range(0, base.size - 63, 64):
        differ = _differ(base, new, np.uintp(at))
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
def spread(base: Array, shift: Int, mask: Int, low: Int, gaps: Array, apart: Array, groups: Array) -> None:
    """Write the group of each change. Also write how many elements of this group lie between the change and the
    previous change in the group."""
    since = np.zeros(GROUPS, np.int64)
    i = np.uintp(0)
    for number in range(gaps.size):
        end = i + np.uintp(gaps[number])
        while i < end:
            since[np.uintp(max(np.int64(base[i]) >> shift & mask, low) - low)] += 1
            i += np.uintp(1)
        group = np.uintp(max(np.int64(base[i]) >> shift & mask, low) - low)
        apart[number], groups[number] = since[group], group
        since[group] = 0
        i += np.uintp(1)


@jit
def collect(
    base: Array,
    new: Array,
    shift: Int,
    mask: Int,
    low: Int,
    half: Int,
    crossing: bool,
    ends: Array,
    apart: Array,
    steps: Array,
) -> bool:
    """Copy `base` to `new`, and move it by the changes that `spread` wrote. The changes are sorted by group; `ends` has
    the end of each group. Return False if the changes lead past the end."""
    left, at = np.full(GROUPS, _NOWHERE), np.zeros(GROUPS, np.int64)
    at[1:] = ends[:-1]
    for number in range(GROUPS):
        if at[number] < ends[number]:
            left[number] = apart[at[number]]
    for i in range(base.size):
        bits: Int = np.int64(base[np.uintp(i)])
        group = np.uintp(max(bits >> shift & mask, low) - low)
        if left[group]:
            left[group] -= 1
            new[np.uintp(i)] = bits
        else:
            number = at[group]
            at[group] = number + 1
            left[group] = np.int64(apart[number + 1]) if number + 1 < ends[group] else _NOWHERE
            step = np.int64(steps[number])
            if crossing:
                new[np.uintp(i)] = bits ^ _crossed(step, half)
            else:
                new[np.uintp(i)] = _from_ulp_order(_ulp_order(bits, half) + step & 2 * half - 1, half)
    return bool((at == ends).all())


@jit
def _crossed(step: Int, half: Int) -> Int:
    return (step >> 1 & half - 1) | (step & 1) * half


@jit
def cross(base: Array, new: Array, half: Int, gaps: Array, steps: Array) -> bool:
    """If more than a quarter of the changes cross 0, replace all steps by the differing bits, with the sign bit lowest.
    Return whether the steps were replaced."""
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
