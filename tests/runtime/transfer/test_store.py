from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.store import VersionStore


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(20, 8, generator=generator).to(torch.bfloat16),
        "norm": torch.randn(8, generator=generator),
        "empty": torch.empty(0, 4, dtype=torch.float16),
    }


def step(tensors: dict[str, torch.Tensor]) -> None:
    for tensor in tensors.values():
        tensor.mul_(1.003)


def stems(store: VersionStore) -> list[str]:
    return [package.stem for package in store.packages()]


def test_first_is_an_anchor_then_deltas_with_an_anchor_every_n(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, anchor_every=2)
    tensors = weights()
    for version in range(4):
        published = store.publish(version, tensors)
        assert (published.delta is None) == (version == 0)
        assert (published.anchor is not None) == (version in (0, 2))
        step(tensors)
    assert stems(store) == [
        "00000000-anchor",
        "00000001-from-00000000",
        "00000002-from-00000001",
        "00000002-anchor",
        "00000003-from-00000002",
    ]
    assert store.latest() == 3
    assert not list(tmp_path.glob("*.tmp"))


def test_old_packages_go_but_never_those_since_the_last_anchor_but_one(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, anchor_every=2, anchors_kept=2)
    tensors = weights()
    for version in range(8):
        store.publish(version, tensors)
        step(tensors)
    assert stems(store) == [
        "00000004-anchor",
        "00000005-from-00000004",
        "00000006-from-00000005",
        "00000006-anchor",
        "00000007-from-00000006",
    ]
    assert len(list(tmp_path.iterdir())) == 2 * len(stems(store))


def test_a_new_process_continues_the_chain(tmp_path: Path) -> None:
    tensors = weights()
    store = VersionStore(tmp_path, anchor_every=100)
    for version in range(3):
        store.publish(version, tensors)
        step(tensors)
    reopened = VersionStore(tmp_path, anchor_every=100).publish(3, tensors)
    expected = VersionStore(tmp_path / "fresh").publish(3, tensors)
    assert reopened.delta is not None
    assert reopened.delta.base_version == 2
    assert reopened.manifest.weights_sha256 == expected.manifest.weights_sha256
    assert 0 < reopened.manifest.changed_elements <= reopened.manifest.total_elements


def test_a_store_damaged_on_disk_is_not_built_upon(tmp_path: Path) -> None:
    tensors = weights()
    VersionStore(tmp_path).publish(0, tensors)
    blob = tmp_path / "00000000-anchor.bin"
    blob.write_bytes(blob.read_bytes()[:-1] + b"\x55")
    with pytest.raises(TransferError, match="does not match its SHA-256"):
        VersionStore(tmp_path).publish(1, tensors)


def test_tied_tensors_are_published_once(tmp_path: Path) -> None:
    tensors = weights()
    tensors["lm_head"] = tensors["embed"]
    published = VersionStore(tmp_path).publish(0, tensors)
    assert [entry.name for entry in published.manifest.tensors] == ["embed", "norm", "empty"]


def test_the_trainer_may_go_on_changing_its_tensors(tmp_path: Path) -> None:
    tensors = weights()
    store = VersionStore(tmp_path)
    store.publish(0, tensors)
    before = tensors["embed"].clone()
    step(tensors)
    delta = store.publish(1, tensors).delta
    assert delta is not None
    changed = sum(int((a != b).sum()) for a, b in [(before, tensors["embed"])])
    assert delta.tensors[0].changed == changed > 0


def test_what_cannot_be_published_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    tensors = weights()
    store.publish(4, tensors)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TransferError, match="version 4 is not newer than version 4"):
        store.publish(4, tensors)
    with pytest.raises(TransferError, match=r"\['norm'\]"):
        store.publish(5, {name: tensor for name, tensor in tensors.items() if name != "norm"})
    with pytest.raises(TransferError, match="'norm' is bfloat16"):
        store.publish(5, {**tensors, "norm": tensors["norm"].to(torch.bfloat16)})
    with pytest.raises(TransferError, match=r"'embed' is torch\.float64"):
        store.publish(5, {**tensors, "embed": tensors["embed"].double()})
    with pytest.raises(TransferError, match="no tensors"):
        VersionStore(tmp_path / "other").publish(0, {})
    assert sorted(path for path in tmp_path.iterdir() if path.is_file()) == before
