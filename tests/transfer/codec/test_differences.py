import numpy as np
import pytest

from rose.transfer.codec import differences


@pytest.mark.parametrize("gaps", [[100], [99, 0], [0] * 101, [2**32 - 1], [0, 2**32 - 1, 5], [0] * 600])
def test_gaps_that_lead_past_the_end_are_refused_and_nothing_there_is_touched(gaps: list[int]) -> None:
    held, other = np.full((2, 5100), 7, np.uint16)
    steps = np.ones(len(gaps), np.int32)
    for base, new in ((held, held), (held, other)):
        assert not differences.move(base[:100], new[:100], 1 << 15, np.array(gaps, np.uint32), steps, 1)
        np.testing.assert_array_equal(new[100:], 7)
