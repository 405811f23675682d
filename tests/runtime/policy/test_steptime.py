import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rose.runtime.policy.steptime import CHANGED_STEPS, FITTED_STEPS, WARM_UP_STEPS, StepTimes


def trained(observe, count=80, seed=0):
    draw = np.random.default_rng(seed)
    times = StepTimes.unknown()
    for _ in range(count):
        times = observe(times, draw)
    return times


def test_nothing_is_predicted_before_a_step_was_seen():
    assert StepTimes.unknown().prefill_ns(512) is None
    assert StepTimes.unknown().decode_ns(8, 4096) is None
    assert StepTimes.unknown().prefill_tokens_within(10**9) is None


def test_the_first_step_pays_for_set_up_and_is_not_learned_from():
    times = StepTimes.unknown()
    for _ in range(WARM_UP_STEPS):
        times = times.observe_prefill(16, 10_000_000_000)
    assert times.prefill_ns(16) is None


@given(
    base=st.integers(0, 50_000_000),
    per_token=st.integers(0, 500_000),
    sizes=st.lists(st.integers(1, 600), min_size=WARM_UP_STEPS + 1, max_size=WARM_UP_STEPS + FITTED_STEPS - 1),
    wanted=st.integers(1, 4000),
)
def test_until_it_is_fitted_a_prediction_is_never_too_short(base, per_token, sizes, wanted):
    times = StepTimes.unknown()
    for tokens in sizes:
        times = times.observe_prefill(tokens, base + per_token * tokens + 1)
    assert times.prefill_ns(wanted) >= base + per_token * wanted - 1


@settings(max_examples=25, deadline=None)
@given(base=st.integers(100_000, 20_000_000), per_token=st.integers(1_000, 500_000), seed=st.integers(0, 2**16))
@example(base=15_361_524, per_token=1_000, seed=13)
def test_prefill_time_is_recovered_from_noisy_steps(base, per_token, seed):
    def observe(times, draw):
        tokens = int(draw.integers(1, 512))
        return times.observe_prefill(tokens, int((base + per_token * tokens) * draw.uniform(0.95, 1.05)))

    times = trained(observe, seed=seed)
    for tokens in (16, 256, 512):
        assert times.prefill_ns(tokens) == pytest.approx(base + per_token * tokens, rel=0.25)
    assert times.prefill.error_share < 0.2
    limit_ns = base + 100 * per_token
    fits = times.prefill_tokens_within(limit_ns)
    # Where what is fitted to noise is above the limit, not even one token fits.
    assert times.prefill_ns(fits) <= limit_ns if fits else times.prefill_ns(1) >= limit_ns


def test_one_stalled_step_moves_little():
    def observe(times, draw):
        batch = int(draw.integers(1, 32))
        return times.observe_decode(batch, batch * 100, 5_000_000 + 300_000 * batch)

    times = trained(observe, 100)
    before = times.decode_ns(16, 1600)
    after = times.observe_decode(16, 1600, 60 * before).decode_ns(16, 1600)
    assert after < 1.1 * before


@pytest.mark.parametrize("factor", [0.2, 5])
def test_a_changed_device_is_learned_anew_within_a_few_steps(factor):
    def observe(times, draw):
        batch = int(draw.integers(1, 32))
        return times.observe_decode(batch, batch * 100, 5_000_000 + 300_000 * batch)

    times = trained(observe, 100)
    for batch in range(4, 4 + CHANGED_STEPS + FITTED_STEPS):
        times = times.observe_decode(batch, batch * 100, int(factor * (5_000_000 + 300_000 * batch)))
    assert times.decode.fitted
    assert times.decode_ns(10, 1000) == pytest.approx(factor * 8_000_000, rel=0.1)


def test_outliers_on_both_sides_are_no_change():
    times = StepTimes.unknown()
    for _ in range(50):
        times = times.observe_prefill(100, 10_000_000)
    for factor in (5, 0.1) * 20:
        times = times.observe_prefill(100, int(factor * 10_000_000))
        assert times.prefill.fitted


def test_decode_time_follows_a_slower_machine():
    draw = np.random.default_rng(0)
    times = StepTimes.unknown()
    for factor in (1, 3):
        for _ in range(300):
            batch = int(draw.integers(1, 32))
            context = batch * int(draw.integers(50, 300))
            times = times.observe_decode(batch, context, factor * (5_000_000 + 300_000 * batch + 200 * context))
        expected = factor * (5_000_000 + 300_000 * 16 + 200 * 3000)
        assert times.decode_ns(16, 3000) == pytest.approx(expected, rel=0.1)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 10_000), st.integers(1, 10**9)), min_size=2, max_size=60))
def test_a_prediction_is_never_negative_or_undefined(steps):
    times = StepTimes.unknown()
    for batch, context, duration in steps:
        times = times.observe_decode(batch, context, duration)
    assert times.decode_ns(1, 1) >= 0
    assert np.isfinite(times.decode.weights).all()
    assert min(times.decode.weights) >= 0
