"""Rollouts in this process, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rose.runtime.rollout.frozenlake import MAX_NEW_TOKENS, STOP_TOKEN_IDS, Episode
from rose.runtime.training.policy_model import Policy, pad


@torch.no_grad()
def play(
    policy: Policy, episodes: Sequence[Episode], *, temperature: float, generator: torch.Generator, version: int = 0
) -> None:
    """Play all episodes to their end, all turns of the same number in one batch, sampling at `temperature`."""
    while live := [episode for episode in episodes if not episode.done]:
        outputs: list[list[int]] = [[] for _ in live]
        logprobs: list[list[float]] = [[] for _ in live]
        while writing := [
            row
            for row, output in enumerate(outputs)
            if len(output) < MAX_NEW_TOKENS and (not output or output[-1] not in STOP_TOKEN_IDS)
        ]:
            conversations = [[*live[row].ids, *outputs[row]] for row in writing]
            hidden = policy(pad(conversations))
            last = hidden[torch.arange(len(writing)), torch.tensor([len(ids) - 1 for ids in conversations])]
            choices = torch.log_softmax(policy.lm_head(last) / temperature, -1)
            for index, token in enumerate(torch.multinomial(choices.exp(), 1, generator=generator)[:, 0].tolist()):
                outputs[writing[index]].append(token)
                logprobs[writing[index]].append(float(choices[index, token]))
        for episode, output, made in zip(live, outputs, logprobs, strict=True):
            episode.apply(output, made, [version] * len(output))
