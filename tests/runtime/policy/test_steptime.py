from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.policy.steptime import WARM_UP_STEPS, StepTimes


def test_nothing_is_predicted_before_a_step_was_seen():
    assert StepTimes.unknown().prefill_ns(512) == 0
    assert StepTimes.unknown().decode_ns(8, 4096) == 0


@settings(max_examples=25, deadline=None)
@given(
    base=st.integers(100_000, 20_000_000),
    per_token=st.integers(1_000, 500_000),
    seed=st.integers(0, 2**16),
)
def test_prefill_time_is_recovered_from_noisy_steps(base, per_token, seed):
    draw = np.random.default_rng(seed)
    times = StepTimes.unknown()
    for _ in range(WARM_UP_STEPS):
        times = times.observe_prefill(16, 10_000_000_000)  # lazy set-up: must not count
    for tokens in draw.integers(1, 512, size=80):
        times = times.observe_prefill(int(tokens), int((base + per_token * tokens) * draw.uniform(0.95, 1.05)))
    for tokens in (16, 256, 512):
        assert times.prefill_ns(tokens) == pytest.approx(base + per_token * tokens, rel=0.25)


def test_decode_time_follows_a_slower_machine():
    draw = np.random.default_rng(0)
    times = StepTimes.unknown()
    for factor in (1, 3):
        for _ in range(150):
            batch = int(draw.integers(1, 32))
            context = batch * int(draw.integers(50, 300))
            times = times.observe_decode(batch, context, factor * (5_000_000 + 300_000 * batch + 200 * context))
        expected = factor * (5_000_000 + 300_000 * 16 + 200 * 3000)
        assert times.decode_ns(16, 3000) == pytest.approx(expected, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 10_000), st.integers(1, 10**9)), max_size=60))
def test_a_prediction_is_never_negative_or_undefined(steps):
    times = StepTimes.unknown()
    for batch, context, duration in steps:
        times = times.observe_decode(batch, context, duration)
    assert times.decode_ns(1, 1) >= 0
    assert np.isfinite(times.decode.weights).all()
