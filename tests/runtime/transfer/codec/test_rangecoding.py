from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer.codec import rangecoding
from rose.runtime.transfer.errors import TransferError

Array = npt.NDArray[Any]
STEPS = st.one_of(st.sampled_from([-1, 1, 2]), st.integers(-(2**31), 2**31 - 1).filter(bool))


def _comes_back(contexts: Array, gaps: Array, steps: Array) -> bytes:
    block = rangecoding.encode(contexts, gaps, steps)
    assert block is not None
    found = rangecoding.decode(memoryview(block), contexts, gaps.size)
    np.testing.assert_array_equal(found[0], gaps)
    np.testing.assert_array_equal(found[1], steps)
    return block


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 60), STEPS), max_size=150),
    st.integers(0, 30),
    st.sampled_from([1, 3, 256]),
    st.integers(0, 2**32),
)
def test_any_changes_come_back(changes: list[tuple[int, int]], after: int, different: int, seed: int) -> None:
    gaps, steps = (np.array([change[of] for change in changes], np.int64) for of in (0, 1))
    elements = int((gaps + 1).sum()) + after
    contexts = np.random.default_rng(seed).integers(256 - different, 256, elements).astype(np.uint8)
    block = _comes_back(contexts, gaps.astype(np.uint32), steps.astype(np.int32))
    with pytest.raises(TransferError, match=f"{len(block) + 1} bytes .* they take {len(block)}"):
        rangecoding.decode(memoryview(block + b"\0"), contexts, gaps.size)


@pytest.mark.parametrize("gap", [0, 1, 7, 40_000])
@pytest.mark.parametrize("step", [1, -1, 3, -(2**31), 2**31 - 1])
def test_what_was_sure_and_then_is_otherwise_comes_back(gap: int, step: int) -> None:
    """Probabilities go as far as they can one way, and then the other."""
    gaps = np.array([*[gap] * 3, *[0] * 30_000, *[30_000] * 2, *[1] * 20], np.uint32)
    steps = np.array([*[step] * 20_000, *[1] * 5_000, *[-5] * (gaps.size - 25_000)], np.int32)
    _comes_back(np.zeros(int(gaps.sum()) + gaps.size, np.uint8), gaps, steps)


def test_more_than_there_is_room_for_is_counted_and_not_written() -> None:
    gaps, steps = np.zeros(1000, np.uint32), np.random.default_rng(0).integers(1, 2**31, 1000).astype(np.int32)
    contexts = np.zeros(1000, np.uint8)
    whole, held = np.empty(8000, np.uint8), np.full(8000, 7, np.uint8)
    length = rangecoding._write(contexts, gaps, steps, whole)
    assert 3000 < length < 8000
    assert rangecoding._write(contexts, gaps, steps, held[:500]) == length
    np.testing.assert_array_equal(held[:499], whole[:499])
    np.testing.assert_array_equal(held[500:], 7)


def test_changes_that_are_not_there_are_refused() -> None:
    contexts = np.zeros(100, np.uint8)
    block = _comes_back(contexts, np.array([3, 5], np.uint32), np.array([1, -1], np.int32))
    with pytest.raises(TransferError, match="101 changes of a block of 100 elements: they lead past"):
        rangecoding.decode(memoryview(block), contexts, 101)
