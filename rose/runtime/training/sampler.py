"""Rollouts in this process, without an engine: for measuring a policy and for learning offline."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rose.runtime.rollout.frozenlake import MAX_NEW_TOKENS, STOP_TOKEN_IDS, Episode
from rose.runtime.training.batching import pad
from rose.runtime.training.policy_model import Policy


@torch.no_grad()
def play(
    policy: Policy, episodes: Sequence[Episode], *, temperature: float, generator: torch.Generator, version: int = 0
) -> None:
    """Play all episodes to their end in one batch with a key-value cache, sampling at `temperature`."""
    length_max = max(len(e.ids) + e.task.turns_max * (MAX_NEW_TOKENS + 2) for e in episodes)
    cache = policy.new_cache(len(episodes), length_max + MAX_NEW_TOKENS)
    known = torch.zeros(len(episodes), dtype=torch.int64)
    live = list(range(len(episodes)))
    while live:
        outputs: list[list[int]] = [[] for _ in live]
        logprobs: list[list[float]] = [[] for _ in live]
        rows = torch.tensor(live)
        # What the cache lacks of each row: at first the board, later the environment's reply.
        fresh = [episodes[row].ids[int(known[row]) :] for row in live]
        writing = list(range(len(live)))
        while writing:
            block = pad([fresh[slot] for slot in writing], device=policy.device)
            lengths = torch.tensor([len(fresh[slot]) for slot in writing])
            active = rows[writing]
            used = int(known[active].max()) + block.shape[1]
            part = [(keys[active, :, :used], values[active, :, :used]) for keys, values in cache]
            hidden = policy(block, part, known[active].to(policy.device))
            for (keys, values), (new_keys, new_values) in zip(cache, part, strict=True):
                keys[active, :, :used], values[active, :, :used] = new_keys, new_values
            known[active] += lengths
            last = hidden[torch.arange(len(writing)), lengths - 1]
            # Drawn where the generator is.
            choices = torch.log_softmax(policy.lm_head(last) / temperature, -1).to(generator.device)
            picked = torch.multinomial(choices.exp(), 1, generator=generator)[:, 0]
            for index, slot in enumerate(writing):
                token = int(picked[index])
                outputs[slot].append(token)
                logprobs[slot].append(float(choices[index, token]))
                fresh[slot] = [token]
            writing = [
                slot
                for slot in writing
                if outputs[slot][-1] not in STOP_TOKEN_IDS and len(outputs[slot]) < MAX_NEW_TOKENS
            ]
        for slot, row in enumerate(live):
            episodes[row].apply(outputs[slot], logprobs[slot], [version] * len(outputs[slot]))
        live = [row for row in live if not episodes[row].done]
