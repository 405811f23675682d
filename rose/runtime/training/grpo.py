"""GRPO (Shao et al. 2024, arXiv 2402.03300) with DAPO's asymmetric clip and mean over tokens (Yu et al. 2025, arXiv
2503.14476), and advantages without division by the deviation (Liu et al. 2025, arXiv 2503.20783)."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor


def advantages(rewards: Sequence[float], groups: Sequence[str]) -> list[float]:
    """Return each reward minus its group's mean, exactly 0 if all rewards of a group are equal."""
    members: dict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    mean = {group: statistics.fmean(of_group) for group, of_group in members.items()}
    equal = {group for group, of_group in members.items() if min(of_group) == max(of_group)}
    return [0.0 if group in equal else reward - mean[group] for reward, group in zip(rewards, groups, strict=True)]


def token_loss(
    logprobs: Tensor, behaviour: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Return the clipped surrogate loss and Schulman's k3 estimate of the KL divergence, summed over generated tokens.
    Shapes are [tokens]. `logprobs` come from the policy and have a gradient. `behaviour` are the engine's logprobs."""
    log_ratio = logprobs - behaviour
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    return -surrogate.sum(), (ratio - 1 - log_ratio).detach().sum()


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each row of `logits` [tokens, vocab] in nats, without a gradient."""
    logprobs = torch.log_softmax(logits.detach(), -1)
    return -(logprobs.exp() * logprobs).sum(-1)
