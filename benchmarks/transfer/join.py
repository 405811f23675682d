"""An engine that joins far behind: by composite deltas, by every delta since, and by the whole version.

The three ways are stores that hold different packages of the same versions, so the same server, receiver and checks
bring an engine from the old version to the new one, over a link of 100 Mbit/s. A new receiver has nothing, and begins
with the only anchor.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.transfer import made_up
from benchmarks.transfer.child import served
from benchmarks.transfer.scope import Scope
from rose.accept.report import Report
from rose.runtime.transfer.apply.apply import prepare
from rose.runtime.transfer.codec.bits import from_bits
from rose.runtime.transfer.package.manifest import plan
from rose.runtime.transfer.store.catalog import Catalog
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.receiver import Receiver

SHARE = 0.01
LINK_BYTES_PER_S = 1e8 / 8
TENSORS = 4
ROUNDS = 3
#: The version that is joined is so many beyond the largest distance: no power of two leads there.
_BEYOND = 21
_WAYS = _COMPOSITES, _CHAIN, _DENSE = "composite deltas", "every delta", "whole version"
_Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Joined:
    packages: int
    wire_bytes: int
    seconds: float


def measure(report: Report, folder: Path, scope: Scope) -> None:
    """Publish as many versions as the largest distance needs, and join at each distance."""
    newest = max(scope.join_distances) + _BEYOND
    starts = {newest - distance for distance in scope.join_distances}
    began = time.perf_counter()
    kept = _publish(folder, scope.join_elements, newest, starts)
    detail: dict[str, object] = {
        "provenance": "simulated",
        "changed_share": SHARE,
        "elements": scope.join_elements,
        "versions": newest + 1,
        "published_s": round(time.perf_counter() - began, 1),
    }
    store = VersionStore(folder / _COMPOSITES)
    for distance in scope.join_distances:
        packages = plan(store.packages(), distance - 1, None)
        name = f"packages to a new receiver, {distance - 1} versions after the anchor"
        report.claim(name, len(packages), "packages", 2 + math.log2(distance), "lower")
    with served(*(folder / way for way in _WAYS)) as urls:
        for distance in scope.join_distances:
            told = _joined(folder, dict(zip(_WAYS, urls, strict=True)), kept, newest - distance, newest)
            ours = told[_COMPOSITES]
            for way in (_CHAIN, _DENSE):
                name = f"to join {distance} versions behind: {way} against ours"
                report.claim(f"bytes {name}", told[way].wire_bytes / ours.wire_bytes, "x", 1, "higher")
                report.claim(f"seconds {name}", told[way].seconds / ours.seconds, "x", 1, "higher")
            detail[str(distance)] = {way: dataclasses.asdict(one) for way, one in told.items()}
    report.detail["join"] = detail


def _joined(
    folder: Path, urls: dict[str, str], kept: dict[int, _Tensors], start: int, newest: int
) -> dict[str, _Joined]:
    """From one version to another in each way, in turns; seconds are the median."""
    rounds: dict[str, list[_Joined]] = {way: [] for way in urls}
    for number in range(ROUNDS):
        for way, url in urls.items():
            staging = folder / f"staging-{way}-{start}-{number}"
            receiver = Receiver(url, None, staging, max_bytes_per_s=LINK_BYTES_PER_S)
            rounds[way].append(_join(receiver, newest, start, kept[start], kept[newest]))
    return {
        way: dataclasses.replace(each[0], seconds=round(statistics.median(one.seconds for one in each), 4))
        for way, each in rounds.items()
    }


def _publish(folder: Path, elements: int, newest: int, kept: set[int]) -> dict[int, _Tensors]:
    """Versions 0 to `newest` in three stores; returns the tensors of those in `kept`, and of the newest."""
    size = elements // TENSORS
    made = made_up.versions(size, SHARE)
    # One anchor for all of them.
    store = VersionStore(folder / _COMPOSITES, anchor_every=2 * newest, anchors_kept=1)
    found, chain = {}, []
    for version in range(newest + 1):
        # Nothing is encoded across tensors: the same weights shifted do for others, and are made in no time.
        bits = next(made)
        shifted = [np.roll(bits, index * size // TENSORS) for index in range(TENSORS)]
        tensors = {f"layers.{index}.weight": from_bits(each, "bfloat16") for index, each in enumerate(shifted)}
        chain.append(store.publish(version, tensors).manifest)
        if version in kept or version == newest:
            found[version] = tensors
    catalog = Catalog(folder / _CHAIN)
    (folder / _CHAIN / "chunks").symlink_to(folder / _COMPOSITES / "chunks")
    catalog.add(chain)
    VersionStore(folder / _DENSE).publish(newest, found[newest])
    return found


def _join(receiver: Receiver, newest: int, start: int, base: _Tensors, expected: _Tensors) -> _Joined:
    engine = {name: tensor.clone() for name, tensor in base.items()}
    began = time.perf_counter()
    staged = receiver.fetch(newest, start)
    prepare(staged, engine).commit()
    seconds = time.perf_counter() - began
    assert all(torch.equal(tensor, engine[name]) for name, tensor in expected.items())
    staged.remove()
    return _Joined(len(staged.manifests), staged.wire_bytes, seconds)
