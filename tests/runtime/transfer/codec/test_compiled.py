from __future__ import annotations

import numba
import numpy as np

from rose.runtime.transfer.codec.compiled import ones, zeros_above, zeros_below


def test_the_instructions_count_bits() -> None:
    @numba.njit
    def counts(word: np.uint64) -> tuple[int, int, int]:
        return ones(word), zeros_below(word), zeros_above(word)

    for value in (0, 1, 2, 3, 0x8000_0000_0000_0000, 0xFFFF_FFFF_FFFF_FFFF, 0x00F0_0000_1000_0000):
        below = 64 if not value else (value & -value).bit_length() - 1
        assert counts(np.uint64(value)) == (value.bit_count(), below, 64 - value.bit_length())
