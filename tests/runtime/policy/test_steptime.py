import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rose.runtime.policy.steptime import CHANGED_STEPS, FITTED_STEPS, WARM_UP_STEPS, StepTimes, attended


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
        times = times.observe_prefill(16, 0, 10_000_000_000)
    assert times.prefill_ns(16) is None


@given(
    base=st.integers(0, 50_000_000),
    per_token=st.integers(0, 500_000),
    per_pair=st.integers(0, 2_000),
    sizes=st.lists(st.integers(1, 600), min_size=WARM_UP_STEPS + 1, max_size=WARM_UP_STEPS + FITTED_STEPS - 1),
    wanted=st.integers(1, 4000),
)
def test_until_it_is_fitted_a_prediction_is_never_too_short(base, per_token, per_pair, sizes, wanted):
    def takes(tokens):
        return base + per_token * tokens + per_pair * tokens * tokens // 2

    times = StepTimes.unknown()
    for tokens in sizes:
        times = times.observe_prefill(tokens, attended(tokens), takes(tokens) + 1)
    assert times.prefill_ns(wanted) >= takes(wanted) - 1


@settings(max_examples=25, deadline=None)
@given(
    base=st.integers(100_000, 20_000_000),
    per_token=st.integers(1_000, 500_000),
    per_pair=st.sampled_from([0, 100, 2_000]),
    seed=st.integers(0, 2**16),
)
@example(base=15_361_524, per_token=1_000, per_pair=0, seed=13)
def test_prefill_time_is_recovered_from_noisy_steps(base, per_token, per_pair, seed):
    def takes(tokens, prefix=0):
        return base + per_token * tokens + per_pair * attended(tokens, prefix)

    def observe(times, draw):
        tokens, prefix = int(draw.integers(1, 512)), int(draw.integers(0, 2048))
        took = int(takes(tokens, prefix) * draw.uniform(0.95, 1.05))
        return times.observe_prefill(tokens, attended(tokens, prefix), took)

    times = trained(observe, seed=seed)
    for tokens, prefix in ((16, 0), (256, 0), (512, 0), (512, 2048)):
        predicted, noise_ns = times.prefill_ns(tokens, attended(tokens, prefix)), 0.05 * takes(512, 2048)
        assert predicted == pytest.approx(takes(tokens, prefix), rel=0.25, abs=noise_ns)
    assert times.prefill.error_share < 0.2
    for prefix in (0, 1024):
        limit_ns = takes(100, prefix)
        fits = times.prefill_tokens_within(limit_ns, prefix)
        # Where what is fitted to noise is above the limit, not even one token fits.
        assert times.prefill_ns(fits or 1, attended(fits or 1, prefix)) <= limit_ns or not fits
        assert times.prefill_ns(fits + 1, attended(fits + 1, prefix)) >= limit_ns - 1


def test_a_long_prompt_is_known_to_take_more_than_in_proportion():
    def observe(times, draw):
        tokens = int(draw.integers(64, 2048))
        return times.observe_prefill(tokens, attended(tokens), int(6_000_000 + 80_000 * tokens + 40 * tokens**2 / 2))

    assert trained(observe).prefill_ns(8192) == pytest.approx(6_000_000 + 80_000 * 8192 + 20 * 8192**2, rel=0.02)


@given(seed=st.integers(0, 2**16))
def test_prompts_of_nearly_one_length_let_no_long_prompt_seem_longer_than_in_proportion(seed):
    def observe(times, draw):
        tokens = int(draw.integers(40, 57))
        return times.observe_prefill(tokens, attended(tokens), int(110_000_000 * draw.uniform(0.8, 1.25)))

    times = trained(observe, seed=seed)
    assert times.prefill_ns(349) <= 1.1 * times.prefill_ns(48) * 349 / 48


def test_a_step_far_beyond_what_was_learned_is_not_known():
    times = StepTimes.unknown()
    for context in range(100, 1100, 100):
        assert not times.decode.knows((1.0, 4, 100)) or context > 100 * (WARM_UP_STEPS + FITTED_STEPS)
        times = times.observe_decode(4, context, 5_000_000 + 100 * context)
    assert [times.decode.knows((1.0, *step)) for step in ((4, 1000), (5, 1200), (1, 1))] == [True] * 3
    assert [times.decode.knows((1.0, *step)) for step in ((8, 1000), (4, 2000))] == [False] * 2
    assert times.observe_decode(8, 1000, 6_000_000).decode.knows((1.0, 8, 1000))


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
        times = times.observe_prefill(100, attended(100), 10_000_000)
    for factor in (5, 0.1) * 20:
        times = times.observe_prefill(100, attended(100), int(factor * 10_000_000))
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


def growth(times, batch):
    context = 64 * batch
    more, fewer = times.decode_ns(batch, context), times.decode_ns(0.8 * batch, 0.8 * context)
    return 5 * (more - fewer) / more


@settings(max_examples=25, deadline=None)
@given(
    share=st.floats(0.1, 0.9), batch=st.integers(2, 8), faster=st.sampled_from([0.75, 1, 1.3]), seed=st.integers(0, 99)
)
def test_a_steady_number_of_requests_does_not_forget_how_steps_grow(share, batch, faster, seed):
    draw = np.random.default_rng(seed)
    times = StepTimes.unknown()

    def observe(times, requests, factor):
        took = 60_000_000 * (1 - share + share * requests / batch)
        context = sum(draw.integers(48, 80, requests))
        return times.observe_decode(requests, context, int(factor * took * draw.uniform(0.97, 1.03)))

    for _ in range(100):
        times = observe(times, int(draw.integers(1, 2 * batch)), 1)
    assert growth(times, batch) == pytest.approx(share, abs=0.1)
    for step in range(600):
        times = observe(times, batch, 1 + (faster - 1) * min(1, step / 300))
    assert growth(times, batch) == pytest.approx(share, abs=0.25)


@given(batch=st.integers(1, 64), steps=st.integers(FITTED_STEPS + WARM_UP_STEPS, 100), seed=st.integers(0, 99))
def test_steps_seem_to_grow_in_proportion_until_the_number_of_requests_changes(batch, steps, seed):
    draw = np.random.default_rng(seed)
    times = StepTimes.unknown()
    for step in range(steps):
        context = batch * (48 + step % 32)
        times = times.observe_decode(batch, context, int(60_000_000 * draw.uniform(0.97, 1.03)))
    assert growth(times, batch) > 0.7


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 10_000), st.integers(1, 10**9)), min_size=2, max_size=60))
def test_a_prediction_is_never_negative_or_undefined(steps):
    times = StepTimes.unknown()
    for batch, context, duration in steps:
        times = times.observe_decode(batch, context, duration)
    assert times.decode_ns(1, 1) >= 0
    assert np.isfinite(times.decode.weights).all()
    assert min(times.decode.weights) >= 0
