"""Trains the built-in policy's first version to imitate a player, because an untrained policy never wins a game."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rose.config import TaskConfig
from rose.runtime.models.models import once
from rose.runtime.rollout import vocabulary
from rose.runtime.rollout.frozenlake import STEPS, FrozenLake, distances, seed_of
from rose.runtime.rollout.trajectory import Transcript

RECIPE = 2  #: Raise it when equal settings give another checkpoint.

_STREAM = 1  #: The seed prefix of warm-start maps. RL never trains on these maps.


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    task: TaskConfig
    seed: int = 0
    noise: float = 0.4  #: The share of the imitated player's moves that are random.
    episodes: int = 2000
    batch_episodes: int = 8
    learning_rate: float = 1.5e-3
    shape: dict[str, Any] = field(default_factory=dict)  #: The fields of `PolicyShape` that differ from the default.

    def digest(self) -> str:
        settings = dataclasses.asdict(dataclasses.replace(self, task=None))  # type: ignore[arg-type]
        task = self.task.model_dump(include={"size", "frozen_share", "slippery", "turns_max"})
        task = {"name": self.task.environment, **task}
        text = json.dumps([RECIPE, settings, task, vocabulary.NAMES], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolve(task: TaskConfig, cache: Path, progress: Callable[[str], None], *, seed: int = 0) -> Path:
    settings = WarmStart(task=task, seed=seed)
    return once(cache, f"frozenlake-tiny-{settings.digest()}", lambda folder: train(settings, folder, progress))


def train(settings: WarmStart, folder: Path, progress: Callable[[str], None], device: str = "cpu") -> None:
    """Train a policy to imitate a player with random moves, and save it in `folder`. Reproducible on one machine."""
    import torch
    from torch.nn import functional

    from rose.runtime.models.policy_model import Policy, PolicyShape, generated_logits

    policy = Policy(PolicyShape(**settings.shape), seed=settings.seed).to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    luck = np.random.default_rng(seed_of(_STREAM, settings.seed))
    updates = max(1, settings.episodes // settings.batch_episodes)
    progress(f"warm start: imitating {updates * settings.batch_episodes} games of a noisy player")
    for update in range(updates):
        games = [
            play(settings, update * settings.batch_episodes + index, luck) for index in range(settings.batch_episodes)
        ]
        rate = settings.learning_rate * min(1.0, (update + 1) / 20) * (1 - 0.9 * update / updates)
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits, ids = generated_logits(policy, [game.ids for game in games], [game.mask for game in games])
        loss = functional.cross_entropy(logits, ids)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if (update + 1) % max(1, updates // 5) == 0:
            progress(f"warm start: {100 * (update + 1) // updates}%, loss {loss.item():.3f}")
    policy.save(folder)
    vocabulary.save_tokenizer(folder)


def play(settings: WarmStart, number: int, luck: np.random.Generator) -> Transcript:
    lake, game = FrozenLake(settings.task, slip_seed=number), Transcript()
    observation = lake.reset(seed_of(_STREAM, settings.seed, number))
    steps_left = distances(lake.board)
    while not lake.terminated and game.turns < settings.task.turns_max:
        game.read(observation)
        row, col = lake.position
        distances_after = [steps_left.get((row + down, col + right), len(steps_left)) for down, right in STEPS]
        best = [move for move in range(len(STEPS)) if distances_after[move] == min(distances_after)]
        move = int(luck.integers(len(STEPS)) if luck.random() < settings.noise else luck.choice(best))
        output = [*lake.around(), vocabulary.MOVES[move], vocabulary.EOT]
        game.write(output, [0.0] * len(output), [0] * len(output))
        observation, *_ = lake.step(output)
    return game
