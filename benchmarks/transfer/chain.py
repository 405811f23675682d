"""The same bytes for real steps: versions that the project's own trainer went through, published in bf16.

Steps at two learning rates: the demo's, which is large since its policy is tiny, and one that is usual for RL of a
large model. Each version is compared as one array, and tensor by tensor as it is published: the tensors of so small a
model have a few hundred changes or fewer, against which the fixed bytes of each count.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.shared import spread
from benchmarks.transfer.compare import Compared, compare
from benchmarks.transfer.scope import Scope
from benchmarks.transfer.ways import AUTO, SMALL, WAYS, XOR
from rose.accept.report import Report
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
RATES = {"the demo's rate": TrainingConfig().learning_rate, "a rate of 1e-6": 1e-6}


def measure(report: Report, _: Path, scope: Scope) -> None:
    """Record what is not in the cache yet, and compare."""
    detail = {}
    for name, rate in RATES.items():
        settings = Settings(
            start=scope.chain_start, learning_rate=rate, steps=scope.chain_steps, groups=scope.chain_groups
        )
        chain = recorded(settings, scope.cache)
        steps = [(np.array(base), np.array(new)) for base, new in itertools.pairwise(chain.versions)]
        # A step without a group that tells good from bad changes nothing: there is nothing to send then.
        moved = [(base, new) for base, new in steps if not np.array_equal(base, new)]
        assert moved, f"no step at {name} changed anything"
        whole = [compare(base, new) for base, new in moved]
        parts = [_by_tensor(chain, base, new) for base, new in moved]
        detail[name] = {
            "learning_rate": rate,
            "steps": len(steps),
            "steps_without_a_change": len(steps) - len(moved),
            "elements": whole[0].elements,
            "tensors": len(chain.tensors),
            "changed_share": spread([float(np.mean(base != new)) for base, new in steps]),
            "as_one_array": _told(whole),
            "tensor_by_tensor": _told(parts),
        }
        for how, compared in (("", whole), (", tensor by tensor", parts)):
            _claim(report, f"{len(compared)} real steps at {name}{how}", compared)
    report.detail["chain"] = {"provenance": "live", **detail}


def _claim(report: Report, name: str, steps: Sequence[Compared]) -> None:
    ratios = [step.sent_bytes[XOR.name] / step.sent_bytes[AUTO.name] for step in steps]
    over = [step.sent_bytes[SMALL.name] / step.bound_bytes for step in steps]
    report.claim(f"bytes of XOR + zstd-1 against ours, median of {name}", statistics.median(ratios), "x", 2, "higher")
    report.claim("  `small` against the entropy", statistics.median(over), "x", 1.15, "lower")


def _by_tensor(chain: Chain, base: Bits, new: Bits) -> Compared:
    parts = [compare(*pair) for pair in zip(chain.parts(base), chain.parts(new), strict=True)]
    sent = sum((Counter(part.sent_bytes) for part in parts), Counter[str]())
    bound = sum(part.bound_bytes for part in parts)
    return Compared(base.size, sum(part.changed for part in parts), bound, dict(sent))


def _told(steps: Sequence[Compared]) -> dict[str, object]:
    """Of all steps together, and how each step was."""
    changed = sum(step.changed for step in steps)
    dense_bytes = sum(step.dense_bytes for step in steps)
    ways = {}
    for way in WAYS:
        sent_bytes = sum(step.sent_bytes[way.name] for step in steps)
        ways[way.name] = {
            "bits_per_change": round(8 * sent_bytes / changed, 2),
            "against_dense": round(dense_bytes / sent_bytes, 2),
            "against_dense_of_a_step": spread([step.dense_bytes / step.sent_bytes[way.name] for step in steps]),
        }
    bound_bits = 8 * sum(step.bound_bytes for step in steps)
    return {"entropy_bits_per_change": round(bound_bits / changed, 3), "ways": ways}


# ------------------------------------------------------------------ recording, once


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
