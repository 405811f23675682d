"""The same bytes for real steps: versions that the project's own trainer went through, published in bf16.

Steps at two learning rates: the demo's, which is large since its policy is tiny, and one that is usual for RL of a
large model. Each version is compared as one array, and tensor by tensor as it is published: the tensors of so small a
model have a few hundred changes or fewer, against which the fixed bytes of each count.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.transfer.compare import Compared, compare
from benchmarks.transfer.recording import Chain, Settings, recorded
from benchmarks.transfer.scope import Scope
from benchmarks.transfer.ways import AUTO, SMALL, WAYS, XOR
from rose.accept.report import Report
from rose.config import TrainingConfig
from rose.runtime.transfer.codec.header import Bits

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
            "changed_share": _spread([float(np.mean(base != new)) for base, new in steps]),
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
            "against_dense_of_a_step": _spread([step.dense_bytes / step.sent_bytes[way.name] for step in steps]),
        }
    bound_bits = 8 * sum(step.bound_bytes for step in steps)
    return {"entropy_bits_per_change": round(bound_bits / changed, 3), "ways": ways}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
