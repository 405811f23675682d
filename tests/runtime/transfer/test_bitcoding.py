from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer import bitcoding

VALUES = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)), max_size=200)


@settings(max_examples=200, deadline=None)
@given(VALUES, st.integers(0, 31))
def test_any_values_come_back_from_their_rice_codes(values: list[int], k: int) -> None:
    out = np.zeros(2 * len(values) + 2, np.uint32)
    at = acc = bits = 0
    for value in values:
        at, acc, bits = bitcoding._put_rice(out, at, acc, bits, value, k)
    out[at] = acc
    words = np.concatenate([out, np.zeros(4, np.uint32)])
    place = 0
    for value in values:
        found, place = bitcoding._get_rice(words, place, k)
        assert found == value
    assert place <= 32 * (at + 1)


@pytest.mark.parametrize("mean", [0.3, 5, 900, 2e6])
def test_the_parameter_follows_the_mean(mean: float) -> None:
    k, total, seen = 0, 11, 8
    for value in np.random.default_rng(0).exponential(mean, 2000).astype(int):
        k, total, seen = bitcoding._adapt(k, total, seen, int(value))
    assert 2 ** (k - 1) <= max(mean, 1) <= 2 ** (k + 2)


def test_a_run_code_is_close_to_the_entropy_at_any_frequency() -> None:
    rng = np.random.default_rng(0)
    for share in (0.001, 0.02, 0.2, 0.45, 0.55, 0.8, 0.99):
        changed = rng.random(1 << 18) < share
        gaps = (np.diff(np.flatnonzero(changed), prepend=-1) - 1).astype(np.uint32)
        out = np.empty(2 * changed.size + 64, np.uint32)
        k = int(np.log2(max(1 / min(share, 1 - share) - 1, 1)))
        words = bitcoding.write_places(gaps, changed.size, share > 0.5, k, out, 0)
        entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) * changed.size
        assert 32 * words < 1.08 * entropy
