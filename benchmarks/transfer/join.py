"""An engine that joins far behind: by composite deltas, by every delta, and by the whole version, over 100 Mbit/s."""

import math
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.transfer import made_up
from benchmarks.transfer.child import served
from benchmarks.transfer.scope import Scope
from benchmarks.transfer.throttle import Throttle
from rose.accept.report import Report
from rose.transfer.apply.apply import prepare
from rose.transfer.codec.bits import from_bits
from rose.transfer.package.manifest import plan
from rose.transfer.store.catalog import Catalog
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.receiver import Receiver

SHARE = 0.01
LINK_BYTES_PER_S = 1e8 / 8
TENSORS = 4
ROUNDS = 3
_BEYOND = 21  #: Versions beyond the largest distance, so that no power of two leads to the newest.
_WAYS = _COMPOSITES, _CHAIN, _DENSE = "composite deltas", "every delta", "whole version"
_Tensors = dict[str, torch.Tensor]


def measure(report: Report, folder: Path, scope: Scope) -> None:
    newest = max(scope.join_distances) + _BEYOND
    kept = _publish(folder, scope.join_elements, newest, {newest - distance for distance in scope.join_distances})
    detail: dict[str, object] = {"changed_share": SHARE, "elements": scope.join_elements, "versions": newest + 1}
    packages = VersionStore(folder / _COMPOSITES).packages()
    for distance in scope.join_distances:
        name = f"packages to a new receiver, {distance - 1} versions after the anchor"
        count = len(plan(packages, distance - 1, None))
        report.claim(name, count, "packages", 2 + math.log2(distance), "lower")
    with served(*(folder / way for way in _WAYS)) as urls:
        for distance in scope.join_distances:
            start = newest - distance
            rounds: dict[str, list[dict[str, float]]] = {way: [] for way in _WAYS}
            for number in range(ROUNDS):
                for way, url in zip(_WAYS, urls, strict=True):
                    staging = folder / f"staging-{way}-{start}-{number}"
                    receiver = Receiver(url, None, staging, pace=Throttle(LINK_BYTES_PER_S).wait)
                    rounds[way].append(_join(receiver, newest, start, kept[start], kept[newest]))
            figures = {
                way: joins[0] | {"seconds": round(statistics.median(join["seconds"] for join in joins), 4)}
                for way, joins in rounds.items()
            }
            for way in (_CHAIN, _DENSE):
                for what, key in (("bytes", "wire_bytes"), ("seconds", "seconds")):
                    name = f"{what} to join {distance} versions behind: {way} against ours"
                    report.claim(name, figures[way][key] / figures[_COMPOSITES][key], "x", 1, "higher")
            detail[str(distance)] = figures
    report.detail["join"] = detail


def _publish(folder: Path, elements: int, newest: int, kept: set[int]) -> dict[int, _Tensors]:
    """Publish versions 0 to `newest` in three stores; return the tensors of `kept`."""
    size = elements // TENSORS
    versions = made_up.versions(size, SHARE)
    store = VersionStore(folder / _COMPOSITES, anchor_every=2 * newest, anchors_kept=1)
    weights, chain = {}, []
    for version in range(newest + 1):
        bits = next(versions)  # Tensors are encoded apart, so the same weights shifted serve as other tensors.
        shifted = [np.roll(bits, index * size // TENSORS) for index in range(TENSORS)]
        tensors = {f"layers.{index}.weight": from_bits(part, "bfloat16") for index, part in enumerate(shifted)}
        chain.append(store.publish(version, tensors)[0])
        if version in kept or version == newest:
            weights[version] = tensors
    catalog = Catalog(folder / _CHAIN)
    (folder / _CHAIN / "chunks").symlink_to(folder / _COMPOSITES / "chunks")
    catalog.add(chain)
    VersionStore(folder / _DENSE).publish(newest, weights[newest])
    return weights


def _join(receiver: Receiver, newest: int, start: int, base: _Tensors, expected: _Tensors) -> dict[str, float]:
    engine = {name: tensor.clone() for name, tensor in base.items()}
    began_s = time.perf_counter()
    staged = receiver.fetch(newest, start)
    prepare(staged, engine).commit()
    seconds = time.perf_counter() - began_s
    assert all(torch.equal(tensor, engine[name]) for name, tensor in expected.items())
    staged.remove()
    return {"packages": len(staged.manifests), "wire_bytes": staged.wire_bytes, "seconds": seconds}
