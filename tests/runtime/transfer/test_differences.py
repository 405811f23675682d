from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer import differences

Array = npt.NDArray[Any]
SIZES = st.one_of(st.integers(0, 200), st.sampled_from([4095, 4096, 4097, 8191, 9000, 20_000]))


def _order(bits: Array) -> npt.NDArray[np.int64]:
    """ULP order by its definition: -0 just below +0, all patterns in the order of what they mean."""
    half = 1 << (8 * bits.itemsize - 1)
    wide = bits.astype(np.int64)
    return np.where(wide < half, wide, half - 1 - wide)


@settings(max_examples=150, deadline=None)
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
    np.testing.assert_array_equal((told - (_order(new) - _order(base))[places]) % (2 * half), 0)
    held = base.copy()
    assert differences.move(held, half, gaps[:found], steps[:found])
    np.testing.assert_array_equal(held, new)


@pytest.mark.parametrize("gaps", [[100], [99, 0], [0] * 101, [2**32 - 1], [0, 2**32 - 1, 5], [0] * 600])
def test_gaps_that_lead_past_the_end_are_refused_and_nothing_there_is_touched(gaps: list[int]) -> None:
    held = np.full(5100, 7, np.uint16)
    steps = np.ones(len(gaps), np.int32)
    assert not differences.move(held[:100], 1 << 15, np.array(gaps, np.uint32), steps)
    np.testing.assert_array_equal(held[100:], 7)
