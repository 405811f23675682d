"""Bytes of real steps by the project's own trainer, published in bf16.

The learning rates are the demo's and a usual one for RL of a large model. Versions are compared as one array, and
tensor by tensor as they are published: in so small a model the fixed bytes of each tensor matter.
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

from benchmarks.transfer.compare import Compared, compare
from benchmarks.transfer.sampler import rollouts
from benchmarks.transfer.scope import CACHE, Scope
from benchmarks.transfer.ways import AUTO, SMALL, XOR
from rose.accept.report import Report
from rose.config import TaskConfig, TrainingConfig
from rose.runtime.engines.models import once
from rose.runtime.training.trainer import Trainer
from rose.runtime.training.warm_start import WarmStart, train
from rose.runtime.transfer.codec.bits import to_bits
from rose.runtime.transfer.codec.header import Bits

GROUP = 8
START = WarmStart(task=TaskConfig())
_RECIPE = 2  #: Raise it when the same settings would give another chain.
RATES = {"the demo's rate": TrainingConfig().learning_rate, "a rate of 1e-6": 1e-6}


def measure(report: Report, _: Path, scope: Scope) -> None:
    detail = {}
    for name, rate in RATES.items():
        chain = recorded(rate, scope)
        steps = [(np.array(base), np.array(new)) for base, new in itertools.pairwise(chain.versions)]
        # A step whose groups each have one reward changes nothing.
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
            "changed_share_median": statistics.median(float(np.mean(base != new)) for base, new in steps),
            "as_one_array": _sum(compared[""]).to_json(),
            "tensor_by_tensor": _sum(compared[", tensor by tensor"]).to_json(),
        }
    report.detail["chain"] = {"provenance": "live", **detail}


def _by_tensor(chain: Chain, base: Bits, new: Bits) -> Compared:
    return _sum([compare(*pair) for pair in zip(chain.parts(base), chain.parts(new), strict=True)])


def _sum(parts: Sequence[Compared]) -> Compared:
    """Return the sum of several steps, or of the tensors of one step."""
    sent = sum((Counter(part.sent_bytes) for part in parts), Counter[str]())
    elements, changed = (sum(getattr(part, name) for part in parts) for name in ("elements", "changed"))
    return Compared(elements, changed, sum(part.bound_bytes for part in parts), dict(sent))


@dataclass(frozen=True, slots=True)
class Chain:
    """Versions 0 to `steps`, a row of bf16 bits each, and the sizes of the tensors in a row."""

    versions: Bits
    tensors: dict[str, int]

    def parts(self, row: Bits) -> Iterator[Bits]:
        at = 0
        for size in self.tensors.values():
            yield row[at : at + size]
            at += size


def recorded(learning_rate: float, scope: Scope) -> Chain:
    """Return the chain at this learning rate, from the cache if it was recorded before."""
    start = START.digest()
    settings = json.dumps([_RECIPE, start, learning_rate, scope.chain_steps, scope.chain_groups])
    name = f"recorded-chain-{hashlib.sha256(settings.encode()).hexdigest()[:12]}"
    with one_thread():
        policy = once(CACHE, f"frozenlake-tiny-{start}", lambda folder: train(START, folder, lambda _: None))
        folder = once(CACHE, name, lambda folder: _record(learning_rate, scope, policy, folder))
    tensors = json.loads((folder / "tensors.json").read_text())
    versions: Bits = np.load(folder / "versions.npy", mmap_mode="r")
    return Chain(versions, tensors)


def _record(learning_rate: float, scope: Scope, checkpoint: Path, folder: Path) -> None:
    trainer = Trainer(checkpoint, TrainingConfig(learning_rate=learning_rate))
    rows = [_row(trainer)]
    for step in range(scope.chain_steps):
        trainer.update(rollouts(trainer.policy, scope.chain_groups, GROUP, task=START.task, seed=step, version=step))
        rows.append(_row(trainer))
    sizes = {name: tensor.numel() for name, tensor in trainer.weights().items()}
    (folder / "tensors.json").write_text(json.dumps(sizes))
    np.save(folder / "versions.npy", np.stack(rows))


def _row(trainer: Trainer) -> Bits:
    row: Bits = np.concatenate([to_bits(name, tensor).reshape(-1) for name, tensor in trainer.weights().items()])
    return row


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, since the policy is too small for more, and waiting threads spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
