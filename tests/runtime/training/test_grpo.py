import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.training.grpo import advantages, entropy, token_loss

samples = st.lists(
    st.tuples(st.floats(-10, 10).map(lambda reward: round(reward, 3)), st.sampled_from("abc")), min_size=1, max_size=24
)


def split(pairs: list[tuple[float, str]]) -> tuple[list[float], list[str]]:
    return [reward for reward, _ in pairs], [group for _, group in pairs]


@given(samples)
def test_advantages_of_a_group_sum_to_zero(pairs: list[tuple[float, str]]) -> None:
    rewards, groups = split(pairs)
    sums: dict[str, float] = defaultdict(float)
    for gain, group in zip(advantages(rewards, groups), groups, strict=True):
        assert math.isfinite(gain)
        sums[group] += gain
    assert all(abs(total) < 1e-6 for total in sums.values())


def test_advantages_by_hand() -> None:
    assert advantages([1, 0, 0, 0], ["g"] * 4) == [0.75, -0.25, -0.25, -0.25]
    assert advantages([0.1] * 7, ["g"] * 7) == [0.0] * 7


ratios = st.floats(0.3, 3.0)
gains = st.floats(-2, 2).filter(lambda gain: abs(gain) > 1e-3)


@given(st.lists(st.tuples(ratios, gains), min_size=1, max_size=16))
def test_gradient_is_that_of_the_clipped_ratio(tokens: list[tuple[float, float]]) -> None:
    ratio = torch.tensor([r for r, _ in tokens], dtype=torch.float64)
    gain = torch.tensor([g for _, g in tokens], dtype=torch.float64)
    behaviour = torch.full_like(ratio, -1.0)
    logprobs = (behaviour + ratio.log()).requires_grad_()
    loss, kl = token_loss(logprobs, behaviour, gain, clip_low=0.2, clip_high=0.28)
    loss.backward()
    assert logprobs.grad is not None
    cut = ((gain > 0) & (ratio > 1.28)) | ((gain < 0) & (ratio < 0.8))
    assert torch.allclose(logprobs.grad, torch.where(cut, torch.zeros_like(gain), -gain * ratio))
    assert float(kl) >= 0


def test_entropy_of_uniform_and_certain_rows() -> None:
    logits = torch.tensor([[0.0] * 8, [100.0] + [0.0] * 7])
    assert entropy(logits).tolist() == pytest.approx([math.log(8), 0.0], abs=1e-6)
