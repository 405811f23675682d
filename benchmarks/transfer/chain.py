"""Steps of the project's own trainer in bf16, at the demo's learning rate and at a usual one for RL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.shared import CACHE
from benchmarks.transfer.sampler import rollouts
from rose.config import TaskConfig, TrainingConfig
from rose.runtime.models.models import once
from rose.runtime.models.warm_start import WarmStart, train
from rose.runtime.training.trainer import Trainer
from rose.transfer.codec.bits import to_bits
from rose.transfer.codec.header import Bits

GROUP = 8
STEPS, GROUPS = 64, 8  #: Steps of the recorded run, and the groups of `GROUP` trajectories in each.
START = WarmStart(task=TaskConfig())
_RECIPE = 2  #: Raise it when the same settings would give another chain.
RATES = {"the demo's rate": TrainingConfig().learning_rate, "a rate of 1e-6": 1e-6}


@dataclass(frozen=True, slots=True)
class Chain:
    """Versions, a row of bf16 bits each, and the sizes of the tensors in a row."""

    versions: Bits
    tensors: dict[str, int]

    def parts(self, row: Bits) -> Iterator[Bits]:
        at = 0
        for size in self.tensors.values():
            yield row[at : at + size]
            at += size


def recorded(learning_rate: float) -> Chain:
    """Return the chain at this learning rate, cached."""
    start = START.digest()
    settings = json.dumps([_RECIPE, start, learning_rate, STEPS, GROUPS])
    name = f"recorded-chain-{hashlib.sha256(settings.encode()).hexdigest()[:12]}"
    with one_thread():
        policy = once(CACHE, f"frozenlake-tiny-{start}", lambda folder: train(START, folder, lambda _: None))
        folder = once(CACHE, name, lambda folder: _record(learning_rate, policy, folder))
    tensors = json.loads((folder / "tensors.json").read_text())
    versions: Bits = np.load(folder / "versions.npy", mmap_mode="r")
    return Chain(versions, tensors)


def _record(learning_rate: float, checkpoint: Path, folder: Path) -> None:
    trainer = Trainer(checkpoint, TrainingConfig(learning_rate=learning_rate))
    rows = [_row(trainer)]
    for step in range(STEPS):
        trainer.update(rollouts(trainer.policy, GROUPS, GROUP, task=START.task, seed=step, version=step))
        rows.append(_row(trainer))
    sizes = {name: tensor.numel() for name, tensor in trainer.weights().items()}
    (folder / "tensors.json").write_text(json.dumps(sizes))
    np.save(folder / "versions.npy", np.stack(rows))


def _row(trainer: Trainer) -> Bits:
    row: Bits = np.concatenate([to_bits(name, tensor).reshape(-1) for name, tensor in trainer.weights().items()])
    return row


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: the policy is too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
