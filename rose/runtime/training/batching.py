"""Right-padded batches of conversations, and the log probabilities of their generated tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rose.runtime.rollout import vocabulary
from rose.runtime.training.policy_model import Policy


def pad(rows: Sequence[Sequence[int]], value: int = vocabulary.PAD, *, device: torch.device | str = "cpu") -> Tensor:
    """int64 [rows, longest], filled up on the right with `value`."""
    longest = max(map(len, rows))
    filled = [[*row, *[value] * (longest - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int64, device=device)


def by_length(lengths: Sequence[int], tokens_max: int) -> list[list[int]]:
    """Indices in batches of similar length, each of at most `tokens_max` padded tokens (or a single long row)."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if not batches or (len(batches[-1]) + 1) * lengths[index] > tokens_max:
            batches.append([])
        batches[-1].append(index)
    return batches


def generated_logits(
    policy: Policy, ids: Sequence[Sequence[int]], mask: Sequence[Sequence[bool]]
) -> tuple[Tensor, Tensor]:
    """Logits [tokens, vocab] of every generated token and its id [tokens], row after row, on the policy's device.

    The token at position i is predicted from the hidden state at i - 1; only those states meet the output layer.
    """
    padded = pad(ids, device=policy.device)
    made = pad([[int(m) for m in row] for row in mask], 0, device=policy.device).bool()
    hidden = policy(padded[:, :-1])
    picked = made[:, 1:]
    return policy.lm_head(hidden[picked]), padded[:, 1:][picked]
