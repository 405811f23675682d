import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.transfer.codec import bitcoding
from rose.transfer.errors import TransferError

VALUES = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)), max_size=200)
STEPS = st.one_of(st.sampled_from([-1, 1]), st.integers(-(2**31), 2**31 - 1).filter(bool))
CHANGES = st.tuples(st.integers(0, 400), STEPS)


@settings(max_examples=20)
@given(VALUES, st.integers(0, 22), st.integers(0, 12), st.binary(min_size=72, max_size=72))
def test_any_numbers_come_back_from_their_rice_codes(values: list[int], k: int, before: int, beyond: bytes) -> None:
    wanted = np.array(values, np.uint32)
    out = np.full(2 * wanted.size + 4, 0xFFFFFFFF, np.uint32)
    end = bitcoding._write(wanted, k, out, 8 * before)
    data = np.frombuffer(out.view(np.uint8)[: -(-end // 8)].tobytes() + beyond, np.uint8)
    assert (data[:before] == 255).all()
    found = np.empty_like(wanted)
    assert bitcoding._read(data, 8 * before, k, found) == end
    np.testing.assert_array_equal(found, wanted)


@settings(max_examples=20)
@given(st.lists(st.lists(CHANGES, max_size=60), min_size=1, max_size=16), st.integers(0, 20))
def test_any_groups_of_changes_come_back(groups: list[list[tuple[int, int]]], cut: int) -> None:
    changes = [change for group in groups for change in group]
    counts = np.array([len(group) for group in groups])
    gaps, steps = (np.array([change[of] for change in changes], np.int64) for of in (0, 1))
    block = bitcoding.encode(counts, gaps.astype(np.uint32), steps.astype(np.int32))
    decoded = bitcoding.decode(memoryview(block), len(groups), len(changes))
    for found, wanted in zip(decoded, (counts, gaps, steps), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for other in (block + b"\0", block[: len(block) - 1 - cut]):
        with pytest.raises(TransferError, match="encoded array has"):
            bitcoding.decode(memoryview(other), len(groups), len(changes))
    with pytest.raises(TransferError, match=f"senseless numbers for {len(changes) + 1} changes"):
        bitcoding.decode(memoryview(block), len(groups), len(changes) + 1)


def written(k: int, far_count: int, between: int) -> memoryview:
    """Return a block of 20 changes, which has one far step."""
    words = np.zeros(64, np.uint32)
    end = bitcoding._write(np.array([k, 20, far_count], np.uint32), bitcoding._NUMBERS, words, 0) + 7 & ~7
    end = bitcoding._write(np.zeros(20, np.uint32), 0, words, end + 24)
    end = bitcoding._write(np.array([between], np.uint32), bitcoding._parameter(20, 1), words, end)
    end = bitcoding._write(np.array([1], np.uint32), 0, words, end)
    return memoryview(words.view(np.uint8)[: -(-end // 8)].tobytes())


def test_what_is_said_of_changes_that_are_not_there_is_refused() -> None:
    gaps, steps = np.zeros(20, np.uint32), np.ones(20, np.int32)
    steps[19] = 3
    assert bitcoding.encode(np.array([20]), gaps, steps) == written(0, 1, 19)
    for k, far_count, between in ((0, 21, 19), (32, 1, 19), (0, 1, 20)):
        with pytest.raises(TransferError, match="senseless numbers for 20 changes"):
            bitcoding.decode(written(k, far_count, between), 1, 20)


def test_numbers_that_nobody_wrote_do_not_lead_past_what_is_looked_at() -> None:
    k, total = 20, bitcoding._FIRST << 20
    for _ in range(50):
        # The largest that are no escapes: the sum grows, and with it the parameter.
        total += 8 * ((bitcoding._ESCAPE - 1) << k | (1 << k) - 1)
        k, total = bitcoding._adapt(total)
        assert 8 * (bitcoding._ESCAPE + 1 + k) + 64 <= 8 * bitcoding._BEYOND_BYTES
    assert k == 31
