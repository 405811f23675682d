"""Bytes of real steps: versions that the project's own trainer went through, published in bf16.

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
from benchmarks.transfer.sampler import play
from benchmarks.transfer.scope import Scope
from benchmarks.transfer.ways import AUTO, SMALL, XOR
from rose.accept.report import Report
from rose.config import TrainingConfig
from rose.runtime.engines.models import once
from rose.runtime.rollout.frozenlake import Episode, seed_of
from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.training.policy_model import Policy
from rose.runtime.training.trainer import Trainer
from rose.runtime.training.warm_start import WarmStart, train
from rose.runtime.transfer.codec.bits import to_bits
from rose.runtime.transfer.codec.header import Bits

GROUP = 8
#: Raise when the same settings would give another chain.
_RECIPE = 2
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
        compared = {
            "": [compare(base, new) for base, new in moved],
            ", tensor by tensor": [_by_tensor(chain, base, new) for base, new in moved],
        }
        for how, each in compared.items():
            ratios = [step.sent_bytes[XOR.name] / step.sent_bytes[AUTO.name] for step in each]
            over = [step.sent_bytes[SMALL.name] / step.bound_bytes for step in each]
            what = f"bytes of XOR + zstd-1 against ours, median of {len(each)} real steps at {name}{how}"
            report.claim(what, statistics.median(ratios), "x", 2, "higher")
            report.claim("  `small` against the entropy", statistics.median(over), "x", 1.15, "lower")
        detail[name] = {
            "learning_rate": rate,
            "steps": len(steps),
            "steps_without_a_change": len(steps) - len(moved),
            "elements": int(chain.versions.shape[1]),
            "tensors": len(chain.tensors),
            "changed_share": spread([float(np.mean(base != new)) for base, new in steps]),
            "as_one_array": _sum(compared[""]).to_json(),
            "tensor_by_tensor": _sum(compared[", tensor by tensor"]).to_json(),
        }
    report.detail["chain"] = {"provenance": "live", **detail}


def _by_tensor(chain: Chain, base: Bits, new: Bits) -> Compared:
    return _sum([compare(*pair) for pair in zip(chain.parts(base), chain.parts(new), strict=True)])


def _sum(parts: Sequence[Compared]) -> Compared:
    """Return several steps, or several tensors of one, as one."""
    sent = sum((Counter(part.sent_bytes) for part in parts), Counter[str]())
    elements, changed = (sum(getattr(part, name) for part in parts) for name in ("elements", "changed"))
    return Compared(elements, changed, sum(part.bound_bytes for part in parts), dict(sent))


# ------------------------------------------------------------------ recording, once


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What decides the recording: `steps` steps of `groups` groups of trajectories each."""

    start: WarmStart
    learning_rate: float
    steps: int
    groups: int

    @property
    def name(self) -> str:
        """Name of the recording's folder in the cache."""
        text = json.dumps([_RECIPE, self.start.digest(), self.learning_rate, self.steps, self.groups])
        return f"recorded-chain-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Versions 0 to `steps`, a row of bf16 bits each, and the sizes of the tensors in a row."""

    versions: Bits
    tensors: dict[str, int]

    def parts(self, row: Bits) -> Iterator[Bits]:
        """Yield the tensors of a row, flat."""
        at = 0
        for size in self.tensors.values():
            yield row[at : at + size]
            at += size


def recorded(settings: Settings, cache: Path) -> Chain:
    """Return the chain, from `cache` if it was recorded before."""
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
    """Use one thread: the policy is too small for more, and threads that wait for each other spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
