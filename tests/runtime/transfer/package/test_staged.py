from __future__ import annotations

from pathlib import Path

import torch

from rose.runtime.transfer.apply.apply import prepare
from rose.runtime.transfer.package.staged import Staged
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.receiver import Receiver


def test_a_way_of_more_than_a_hundred_packages(tmp_path: Path) -> None:
    # An anchor each time and one kept: there are no composites, and the deltas stay for who acknowledged version 0.
    store = VersionStore(tmp_path / "store", anchor_every=1, anchors_kept=1)
    weights = {"w": torch.zeros(10_000, dtype=torch.bfloat16)}
    store.publish(0, weights)
    store.claims.acknowledge("slow", 0)
    for version in range(1, 102):
        weights["w"][version] = version
        store.publish(version, weights)
    engine = {"w": torch.zeros(10_000, dtype=torch.bfloat16)}
    staged = Receiver(f"file://{store.folder}", None, tmp_path / "staging").fetch(101, 0)
    assert len(Staged.open(staged.folder).manifests) == 101
    prepare(staged, engine).commit()
    assert torch.equal(engine["w"], weights["w"])
