"""The versions that the project's own trainer goes through, its rollouts played in this process; recorded once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rose.config import TrainingConfig
from rose.runtime.engines.models import once
from rose.runtime.rollout.frozenlake import Episode, seed_of
from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.training.policy_model import Policy
from rose.runtime.training.sampler import play
from rose.runtime.training.trainer import Trainer
from rose.runtime.training.warm_start import WarmStart, train
from rose.runtime.transfer.codec.bits import to_bits
from rose.runtime.transfer.codec.header import Bits

GROUP = 8
#: Raise when the same settings would give another chain.
_RECIPE = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """All that decides what is recorded: `steps` steps of `groups` groups of trajectories each."""

    start: WarmStart
    learning_rate: float
    steps: int
    groups: int

    @property
    def name(self) -> str:
        """Of its folder in the cache."""
        text = json.dumps([_RECIPE, self.start.digest(), self.learning_rate, self.steps, self.groups])
        return f"recorded-chain-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Versions 0 to `steps`, a row of bf16 bits each, and the sizes of the tensors in a row."""

    versions: Bits
    tensors: dict[str, int]

    def parts(self, row: Bits) -> Iterator[Bits]:
        """The tensors of a row, flat."""
        at = 0
        for size in self.tensors.values():
            yield row[at : at + size]
            at += size


def recorded(settings: Settings, cache: Path) -> Chain:
    """The chain, from `cache` if it was recorded before."""
    start = settings.start
    with _one_thread():
        policy = once(cache, f"frozenlake-tiny-{start.digest()}", lambda folder: train(start, folder, lambda _: None))
        folder = once(cache, settings.name, lambda folder: _record(settings, policy, folder))
    tensors = json.loads((folder / "tensors.json").read_text())
    versions: Bits = np.load(folder / "versions.npy", mmap_mode="r")
    return Chain(versions, tensors)


def _record(settings: Settings, checkpoint: Path, folder: Path) -> None:
    trainer = Trainer(checkpoint, TrainingConfig(learning_rate=settings.learning_rate))
    rows = [_row(trainer)]
    for step in range(settings.steps):
        trainer.update(_rollouts(trainer.policy, settings, step))
        rows.append(_row(trainer))
    sizes = {name: tensor.numel() for name, tensor in trainer.weights().items()}
    (folder / "tensors.json").write_text(json.dumps(sizes))
    np.save(folder / "versions.npy", np.stack(rows))


def _row(trainer: Trainer) -> Bits:
    row: Bits = np.concatenate([to_bits(name, tensor).reshape(-1) for name, tensor in trainer.weights().items()])
    return row


def _rollouts(policy: Policy, settings: Settings, step: int) -> list[Trajectory]:
    task = settings.start.task
    games = [
        (f"{step}-{group}", Episode(task, seed_of(step, group), slip_seed=number))
        for group in range(settings.groups)
        for number in range(GROUP)
    ]
    generator = torch.Generator().manual_seed(step)
    play(policy, [game for _, game in games], temperature=1.0, generator=generator, version=step)
    return [
        Trajectory(
            trajectory_id=f"{group}-{number}",
            group_id=group,
            step=step,
            task=task.name,
            outcome="finished" if game.terminated else "truncated",
            ids=game.ids,
            mask=game.mask,
            logprobs=game.logprobs,
            versions=game.versions,
            reward=game.reward,
            correct=game.reward == 1.0,
            turns=game.turns,
            answer_tokens=game.answer_tokens,
            duration_ns=0,
        )
        for number, (group, game) in enumerate(games)
    ]


@contextmanager
def _one_thread() -> Iterator[None]:
    """The policy is too small for more, and threads that wait for each other spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
