"""The built-in policy's start: a short imitation of a noisy player with true reasoning, since an untrained policy never
reaches the goal. Imports no torch by itself."""

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
from rose.runtime.rollout.frozenlake import STEPS, Episode, distances, seed_of

RECIPE = 2  #: Raise when the same settings give another checkpoint.

_STREAM = 1  #: Seed prefix of warm-start maps, so that RL never trains on imitated boards.


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    task: TaskConfig
    seed: int = 0
    noise: float = 0.4  #: Share of the imitated player's moves that are uniformly random.
    episodes: int = 2000
    batch_episodes: int = 8
    learning_rate: float = 1.5e-3
    shape: dict[str, Any] = field(default_factory=dict)  #: Fields of `PolicyShape` that differ from its defaults.

    def digest(self) -> str:
        """Return a hash of the inputs of the weights, which names the cached checkpoint."""
        settings = dataclasses.asdict(dataclasses.replace(self, task=None))  # type: ignore[arg-type]
        task = self.task.model_dump(include={"size", "frozen_share", "slippery", "turns_max"})
        task = {"name": self.task.environment, **task}
        text = json.dumps([RECIPE, settings, task, vocabulary.NAMES], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolve(task: TaskConfig, cache: Path, progress: Callable[[str], None], *, seed: int = 0) -> Path:
    """Return the warm-started checkpoint for `task`, trained on CPU cores if `cache` has none: no GPU context here."""
    settings = WarmStart(task=task, seed=seed)
    return once(cache, f"frozenlake-tiny-{settings.digest()}", lambda folder: train(settings, folder, progress))


def train(settings: WarmStart, folder: Path, progress: Callable[[str], None], device: str = "cpu") -> None:
    """Imitate the noisy player; save the policy in `folder`, equal for equal settings, machine, device and threads."""
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


def play(settings: WarmStart, number: int, luck: np.random.Generator) -> Episode:
    episode = Episode(settings.task, seed_of(_STREAM, settings.seed, number), slip_seed=number)
    lake = episode.lake
    steps_left = distances(lake.board)
    while not episode.done:
        row, col = lake.position
        after = [steps_left.get((row + down, col + right), len(steps_left)) for down, right in STEPS]
        best = [move for move in range(len(STEPS)) if after[move] == min(after)]
        move = int(luck.integers(len(STEPS)) if luck.random() < settings.noise else luck.choice(best))
        output = [*lake.around(), vocabulary.MOVES[move], vocabulary.EOT]
        episode.apply(output, [0.0] * len(output), [0] * len(output))
    return episode
