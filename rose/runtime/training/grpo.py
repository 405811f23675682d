"""Group-relative policy optimisation as pure functions: advantages and the clipped loss.

Sources: GRPO (Shao et al. 2024, arXiv 2402.03300) for group-relative advantages; DAPO (Yu et al. 2025, arXiv
2503.14476) for the asymmetric clip and the mean over tokens; Dr. GRPO (Liu et al. 2025, arXiv 2503.20783) for leaving
out the division by the group's standard deviation; Schulman's k3 estimator for the KL divergence.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def advantages(rewards: Sequence[float], groups: Sequence[str], *, normalise_std: bool = False) -> list[float]:
    """Each reward minus the mean of its group, divided by the group's standard deviation if `normalise_std`.

    A group of equal rewards gives zeros: it says nothing about which trajectory was better.
    """
    members: dict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    mean = {group: statistics.fmean(of_group) for group, of_group in members.items()}
    spread = {group: statistics.pstdev(of_group) for group, of_group in members.items()}
    return [
        0.0 if spread[group] == 0 else (reward - mean[group]) / (spread[group] if normalise_std else 1.0)
        for reward, group in zip(rewards, groups, strict=True)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLoss:
    """Sums over tokens, so that micro-batches add up; divide by the token count of the whole mini-batch."""

    loss: Tensor
    #: k3 estimate of KL(behaviour || policy), detached.
    kl: Tensor
    #: Tokens whose gradient the clip cut off.
    clipped: Tensor


def token_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantage: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_weight: float = 0.0,
) -> TokenLoss:
    """The clipped surrogate of each generated token, summed.

    All tensors are [tokens]: `logprobs` under the policy being trained (with gradient), `behaviour` as the engine
    returned them when it sampled, `advantage` of the token's trajectory. The ratio is clipped to
    [1 - clip_low, 1 + clip_high]; `kl_weight` adds a k3 penalty for leaving the behaviour policy.
    """
    log_ratio = logprobs - behaviour
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.minimum(ratio * advantage, clipped_ratio * advantage)
    k3 = ratio - 1 - log_ratio
    return TokenLoss(
        loss=(kl_weight * k3 - surrogate).sum(),
        kl=k3.detach().sum(),
        clipped=(clipped_ratio * advantage < ratio * advantage).detach().sum(),
    )


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of each row of `logits` [tokens, vocab], detached, as [tokens]."""
    logprobs = torch.log_softmax(logits.detach(), -1)
    return -(logprobs.exp() * logprobs).sum(-1)
