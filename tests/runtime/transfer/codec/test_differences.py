from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer.codec import differences
from tests.runtime.transfer.bit_patterns import ulp_order

SIZES = st.one_of(st.integers(0, 200), st.sampled_from([4095, 4096, 4097, 8191, 9000, 20_000]))


@settings(max_examples=20)
@given(
    SIZES, st.sampled_from([np.uint8, np.uint16, np.uint32]), st.sampled_from([0, 0.01, 0.1, 0.6, 1]), st.integers(0)
)
def test_what_is_found_is_what_changed_and_leads_there(size: int, dtype: type, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    top = np.iinfo(dtype).max
    base, other = rng.integers(0, top, (2, size), dtype=dtype, endpoint=True)
    new = np.where(rng.random(size) < share, other, base)
    half = (int(top) + 1) // 2
    gaps, steps = np.empty(size, np.uint32), np.empty(size, np.int32)
    found = differences.find(base, new, half, gaps, steps)
    places = np.flatnonzero(base != new)
    assert found == places.size
    np.testing.assert_array_equal(np.cumsum(gaps[:found].astype(np.int64) + 1) - 1, places)
    told = steps[:found].astype(np.int64)
    assert ((-half <= told) & (told < half)).all()
    np.testing.assert_array_equal((told - (ulp_order(new) - ulp_order(base))[places]) % (2 * half), 0)
    held, other = base.copy(), np.empty_like(base)
    assert differences.move(held, other, half, gaps[:found], steps[:found], 1)
    np.testing.assert_array_equal(held, base)
    np.testing.assert_array_equal(other, new)
    assert differences.move(held, held, half, gaps[:found], steps[:found], 1)
    np.testing.assert_array_equal(held, new)
    assert differences.move(held, held, half, gaps[:found], steps[:found], -1)
    np.testing.assert_array_equal(held, base)


@pytest.mark.parametrize("gaps", [[100], [99, 0], [0] * 101, [2**32 - 1], [0, 2**32 - 1, 5], [0] * 600])
def test_gaps_that_lead_past_the_end_are_refused_and_nothing_there_is_touched(gaps: list[int]) -> None:
    held, other = np.full((2, 5100), 7, np.uint16)
    steps = np.ones(len(gaps), np.int32)
    for base, new in ((held, held), (held, other)):
        assert not differences.move(base[:100], new[:100], 1 << 15, np.array(gaps, np.uint32), steps, 1)
        np.testing.assert_array_equal(new[100:], 7)


@settings(max_examples=20)
@given(
    SIZES, st.sampled_from([np.uint8, np.uint16, np.uint32]), st.sampled_from([0, 0.01, 0.1, 0.6, 1]), st.integers(0)
)
def test_what_is_picked_is_what_changed_or_there_is_no_room(size: int, dtype: type, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    base, other = rng.integers(0, np.iinfo(dtype).max, (2, size), dtype=dtype, endpoint=True)
    new = np.where(rng.random(size) < share, other, base)
    expected = np.flatnonzero(base != new)
    places, values = np.empty(expected.size, np.int32), np.empty(expected.size, dtype)
    assert differences.pick(base, new, places, values) == expected.size
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, new[expected])
    if expected.size:
        assert differences.pick(base, new, places[1:], values[1:]) == -1
