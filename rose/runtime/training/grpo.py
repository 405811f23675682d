"""Group-relative policy optimisation (GRPO) as pure functions: advantages and the clipped loss. Group-relative
advantages come from GRPO (Shao et al. 2024, arXiv 2402.03300). The asymmetric clip and the mean over tokens come from
DAPO (Yu et al. 2025, arXiv 2503.14476). As in Dr. GRPO (Liu et al. 2025, arXiv 2503.20783), advantages are not divided
by the standard deviation of the group. The KL divergence uses Schulman's k3 estimator."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def advantages(rewards: Sequence[float], groups: Sequence[str]) -> list[float]:
    """Return each reward minus the mean reward of its group. If all rewards of a group are equal, its advantages are
    exactly 0."""
    members: dict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    mean = {group: statistics.fmean(of_group) for group, of_group in members.items()}
    equal = {group for group, of_group in members.items() if min(of_group) == max(of_group)}
    return [0.0 if group in equal else reward - mean[group] for reward, group in zip(rewards, groups, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLoss:
    """Sums over tokens. Sums of micro-batches can be added; divide the total by the tokens of the mini-batch."""

    loss: Tensor
    kl: Tensor  #: k3 estimate of KL(behaviour || policy), detached.


def token_loss(
    logprobs: Tensor, behaviour: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> TokenLoss:
    """Return the loss from the clipped surrogate, summed over generated tokens. All tensors have shape [tokens].
    `logprobs` are log probabilities of the trained policy, with a gradient. `behaviour` are log probabilities of the
    engine. `advantage` is the advantage of each token's trajectory. The ratio is limited to the range from 1 -
    `clip_low` to 1 + `clip_high`."""
    log_ratio = logprobs - behaviour
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    return TokenLoss(loss=-surrogate.sum(), kl=(ratio - 1 - log_ratio).detach().sum())


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each row of `logits` in nats, without a gradient. `logits` has shape [tokens, vocab], and
    the result has shape [tokens]."""
    logprobs = torch.log_softmax(logits.detach(), -1)
    return -(logprobs.exp() * logprobs).sum(-1)
