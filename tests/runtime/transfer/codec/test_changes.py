from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer.codec import blocks, changes
from rose.runtime.transfer.codec.header import Bits
from tests.runtime.transfer.bit_patterns import pairs


@settings(max_examples=20)
@given(pairs(), st.integers(0, 2**32), st.sampled_from([100, 1 << 21]))
def test_they_merge_and_are_undone(pair: tuple[Bits, Bits], seed: int, block: int) -> None:
    first, second = pair
    rng = np.random.default_rng(seed)
    other = rng.integers(0, np.iinfo(second.dtype).max, second.shape, dtype=second.dtype, endpoint=True)
    # Some of what changed goes back to what it was.
    third = np.where(rng.random(second.shape) < 0.3, first, np.where(rng.random(second.shape) < 0.2, other, second))
    third = np.ascontiguousarray(third.astype(second.dtype)).reshape(second.shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK_ELEMENTS", block)
        merged = changes.merge(changes.between(first, second), changes.between(second, third), first.itemsize)
        assert merged == changes.between(first, third)
        held = third.copy()
        changes.move(held, merged, -1)
        np.testing.assert_array_equal(held, first)
        changes.move(held, merged)
        np.testing.assert_array_equal(held, third)
