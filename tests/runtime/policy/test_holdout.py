import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy.holdout import HoldoutRules, draw, window_at

SECOND = 1_000_000_000
RULES = HoldoutRules(share=0.05, window_ns=120 * SECOND, washout_ns=60 * SECOND, seed=7)
NOW_NS = 1_780_272_000 * SECOND


def test_an_auditor_draws_the_same_from_the_seed_the_device_and_the_number():
    digest = hashlib.sha256(b"7/gpu-0/14835600").hexdigest()
    assert draw(7, "gpu-0", 14835600) == int(digest[:13], 16) / 2**52
    window = window_at(RULES, "gpu-0", NOW_NS)
    assert NOW_NS // RULES.window_ns == 14835600
    assert window.draw == draw(7, "gpu-0", 14835600)


@given(st.integers(0, 2**61), st.integers(1, 2**50))
def test_every_time_lies_in_one_window_of_the_length_that_was_asked_for(utc_ns, window_ns):
    window = window_at(replace(RULES, window_ns=window_ns, washout_ns=0), "d", utc_ns)
    assert window.t0_ns <= utc_ns < window.t1_ns
    assert (window.t1_ns - window.t0_ns, window.t0_ns % window_ns) == (window_ns, 0)
    assert window == window_at(replace(RULES, window_ns=window_ns, washout_ns=0), "d", window.t0_ns)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
def test_as_large_a_share_of_windows_is_withheld_and_one_says_nothing_of_another(share):
    rules = replace(RULES, share=share)
    devices = ("gpu-0", "gpu-1")
    by_device = {name: [window_at(rules, name, n * rules.window_ns).withheld for n in range(4000)] for name in devices}
    for withheld in by_device.values():
        assert sum(withheld) / 4000 == pytest.approx(share, abs=0.025)
    in_a_row = sum(a and b for a, b in zip(by_device["gpu-0"], by_device["gpu-0"][1:], strict=False))
    at_once = sum(a and b for a, b in zip(*by_device.values(), strict=True))
    assert in_a_row / 4000 == pytest.approx(share**2, abs=0.025)
    assert at_once / 4000 == pytest.approx(share**2, abs=0.025)


def test_a_washout_leaves_something_of_a_window():
    with pytest.raises(AssertionError, match="of a window"):
        replace(RULES, washout_ns=RULES.window_ns)
