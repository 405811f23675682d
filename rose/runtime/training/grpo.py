"""Group-relative policy optimisation as pure functions: advantages and the clipped loss. Sources: GRPO (Shao et al.
2024, arXiv 2402.03300) for group-relative advantages; DAPO (Yu et al. 2025, arXiv 2503.14476) for the asymmetric clip
and the mean over tokens; Dr. GRPO (Liu et al. 2025, arXiv 2503.20783) for omitting the division by the group's standard
deviation; Schulman's k3 estimator for the KL divergence."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def advantages(rewards: Sequence[float], groups: Sequence[str]) -> list[float]:
    """Return each reward minus its group's mean; exact zeros for a group of equal rewards."""
    members: dict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    mean = {group: statistics.fmean(of_group) for group, of_group in members.items()}
    equal = {group for group, of_group in members.items() if min(of_group) == max(of_group)}
    return [0.0 if group in equal else reward - mean[group] for reward, group in zip(rewards, groups, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLoss:
    """Sums over tokens, so that micro-batches add up; divide them by the mini-batch's token count."""

    loss: Tensor
    kl: Tensor  #: k3 estimate of KL(behaviour || policy), detached.


def token_loss(
    logprobs: Tensor, behaviour: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> TokenLoss:
    """Return the clipped surrogate, summed over generated tokens. All tensors are [tokens]: `logprobs` of the trained
    policy (with gradient), `behaviour` of the engine, `advantage` of the trajectory. The ratio is clipped to [1 -
    clip_low, 1 + clip_high]."""
    log_ratio = logprobs - behaviour
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    return TokenLoss(loss=-surrogate.sum(), kl=(ratio - 1 - log_ratio).detach().sum())


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of each row of `logits` [tokens, vocab], detached, as [tokens]."""
    logprobs = torch.log_softmax(logits.detach(), -1)
    return -(logprobs.exp() * logprobs).sum(-1)
