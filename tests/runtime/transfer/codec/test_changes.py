import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer.codec import blocks, changes
from rose.runtime.transfer.codec.header import Bits
from tests.runtime.transfer.bit_patterns import pairs, ulp_order


@settings(max_examples=20)
@given(pairs(), st.sampled_from([100, 1 << 21]))
def test_what_is_found_is_what_changed(pair: tuple[Bits, Bits], block: int) -> None:
    base, new = pair
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK_ELEMENTS", block)
        done = changes.between(base, new)
        places, steps = done.positions_and_steps()
    np.testing.assert_array_equal(places, np.flatnonzero(base != new))
    told = steps.astype(np.int64)
    assert ((-done.half <= told) & (told < done.half)).all()
    moved = (ulp_order(new) - ulp_order(base)).reshape(-1)[places]
    np.testing.assert_array_equal((told - moved) % (2 * done.half), 0)


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
        merged = changes.merge(changes.between(first, second), changes.between(second, third))
        assert merged == changes.between(first, third)
        changes.undo(third, merged)
    np.testing.assert_array_equal(third, first)
