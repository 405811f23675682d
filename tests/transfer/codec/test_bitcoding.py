import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.transfer.codec import bitcoding
from rose.transfer.errors import TransferError

VALUES = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)), max_size=200)
STEPS = st.one_of(st.sampled_from([-1, 1]), st.integers(-(2**31), 2**31 - 1).filter(bool))
ELEMENTS = 100_000


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
@given(st.lists(st.tuples(st.integers(0, 400), STEPS), max_size=200), st.integers(0, 20))
def test_any_changes_come_back(changes: list[tuple[int, int]], cut: int) -> None:
    gaps, steps = (np.array([change[of] for change in changes], np.int64) for of in (0, 1))
    block = bitcoding.encode(ELEMENTS, gaps.astype(np.uint32), steps.astype(np.int32))
    found = bitcoding.decode(memoryview(block), ELEMENTS, len(changes))
    np.testing.assert_array_equal(found[0], gaps)
    np.testing.assert_array_equal(found[1], steps)
    for other in (block + b"\0", block[: len(block) - 1 - cut]):
        with pytest.raises(TransferError, match="encoded array has"):
            bitcoding.decode(memoryview(other), ELEMENTS, len(changes))


def test_what_is_said_of_changes_that_are_not_there_is_refused() -> None:
    gaps, steps = np.zeros(20, np.uint32), np.ones(20, np.int32)
    steps[5] = 3
    block = bitcoding.encode(ELEMENTS, gaps, steps)
    assert block[0] == 1, "one of them moved further"
    with pytest.raises(TransferError, match="20 changes and 21 far steps"):
        bitcoding.decode(memoryview(b"\x15" + block[1:]), ELEMENTS, 20)
    steps[5], steps[19] = 1, 3
    at_19 = bitcoding.encode(ELEMENTS, gaps, steps)
    with pytest.raises(TransferError, match="far step past its 20 changes"):
        bitcoding.decode(memoryview(at_19[:-2] + b"\x3b" + at_19[-1:]), ELEMENTS, 20)


def test_numbers_that_nobody_wrote_do_not_lead_past_what_is_looked_at() -> None:
    k, total = 20, bitcoding._FIRST << 20
    for _ in range(50):
        # The largest that are no escapes: the sum grows, and with it the parameter.
        total += 8 * ((bitcoding._ESCAPE - 1) << k | (1 << k) - 1)
        k, total = bitcoding._adapt(total)
        assert 8 * (bitcoding._ESCAPE + 1 + k) + 64 <= 8 * bitcoding._BEYOND_BYTES
    assert k == 31
