"""What is published, as receivers find it."""

import logging
from pathlib import Path

import pytest
import torch

from benchmarks.transfer.shards import ShardedStore
from rose.transfer.layout.shards import ModelShape
from rose.transfer.package.manifest import Package, plan, read_index
from rose.transfer.sources.sharing import cut_whole
from rose.transfer.store.store import Publisher, VersionStore
from tests.transfer.training import chunks_in, chunks_of, file_size_limit, join, same, weights


def test_deltas_composites_at_powers_of_two_and_an_anchor_every_n(memory: Path) -> None:
    store = VersionStore(memory, anchor_every=8)
    for version in range(12):
        published = store.publish(version, weights(version))
        bases = [manifest.base_version for manifest in published]
        composites = [version - stride for stride in (2, 4, 8) if version and version % stride == 0]
        assert bases == ([None] if version == 0 else [version - 1, *composites, *([None] if version == 8 else [])])
    assert store.latest() == 11
    assert [package.stem for package in store.packages()[:6]] == [
        "00000000-anchor",
        "00000001-from-00000000",
        "00000002-from-00000001",
        "00000002-from-00000000",
        "00000003-from-00000002",
        "00000004-from-00000003",
    ]
    assert read_index((memory / "index.json").read_bytes()) == store.packages()
    assert [package.blob_bytes for package in store.packages()] == [
        sum((memory / "chunks" / c.sha256[:2] / c.sha256).stat().st_size for c in store.manifest(package).chunks)
        for package in store.packages()
    ]
    assert chunks_in(store) == chunks_of(store)
    assert not [path for path in memory.rglob("*") if path.name.endswith(".tmp")]


def test_every_version_is_reached_from_everywhere_by_few_packages(memory: Path) -> None:
    store = VersionStore(memory / "store", anchor_every=16)
    for version in range(18):
        store.publish(version, weights(version))
    alike = [Package(package.version, package.base_version, 1) for package in store.packages()]
    for version in range(1, 18):
        for have in range(version):
            assert len(plan(alike, version, have)) <= 2 * (version - have).bit_length()
        joiner = plan([package for package in alike if package.version != 16 or package.base_version], version, None)
        assert len(joiner) <= 1 + version.bit_length(), "an anchor, and log2 of the distance and one deltas"
    for version, have in ((17, None), (17, 0), (17, 13), (16, 0), (15, None)):
        assert same(join(store, version, have, memory / "staged"), weights(version))


def test_the_delta_is_visible_before_what_joiners_need_is_made(memory: Path) -> None:
    store = VersionStore(memory / "store", anchor_every=4)
    found: list[list[str]] = []

    def look() -> None:
        reader = VersionStore(store.folder)
        assert read_index((store.folder / "index.json").read_bytes()) == reader.packages()
        latest = reader.latest()
        assert latest is not None
        assert same(join(reader, latest, latest - 1 if latest else None, memory / "staged"), weights(latest))
        found.append([package.stem for package in reader.packages() if package.version == latest])

    for version in range(5):
        store.publish(version, weights(version), visible=look)
    assert found == [["00000000-anchor"], *([f"{v:08d}-from-{v - 1:08d}"] for v in range(1, 5))]
    last = [package.stem for package in store.packages() if package.version == 4]
    assert last == ["00000004-from-00000003", "00000004-from-00000002", "00000004-from-00000000", "00000004-anchor"]


def test_a_new_process_continues_the_chain(memory: Path) -> None:
    for version in range(6):
        published = VersionStore(memory / "store", anchor_every=4).publish(version, weights(version))
        assert published[0].base_version == (version - 1 if version else None)
        assert any(manifest.base_version is None for manifest in published) == (version in (0, 4))
    expected = VersionStore(memory / "fresh").publish(5, weights(5))
    assert published[0].base_version == 4
    assert published[0].weights_sha256 == expected[0].weights_sha256
    assert same(join(VersionStore(memory / "store"), 5, 2, memory / "staged"), weights(5))


def test_tied_tensors_are_published_once(memory: Path) -> None:
    tensors = weights(0)
    tensors["lm_head"] = tensors["embed"]
    published = VersionStore(memory).publish(0, tensors)
    assert [info.name for info in published[0].tensors] == ["eighth", "embed", "head", "none", "norm"]


def test_the_trainer_may_go_on_changing_its_tensors(memory: Path) -> None:
    tensors = weights(0)
    store = VersionStore(memory)
    store.publish(0, tensors)
    tensors["embed"][3] += 1
    delta = store.publish(1, tensors)[0]
    bits, before = (each["embed"].view(torch.int16) for each in (tensors, weights(0)))
    assert delta.changed_elements == int((bits != before).sum()) > 0


def test_a_published_version_is_visible_at_once_and_whole_after_a_wait(memory: Path) -> None:
    store = VersionStore(memory, anchor_every=2)
    publisher = Publisher(store)
    for version in range(5):
        publisher.publish(version, cut_whole(weights(version)))
        assert store.latest() == version
    publisher.wait()
    assert {package.base_version for package in store.packages() if package.version == 4} == {3, 2, None}


def test_a_trainer_goes_on_if_only_the_rest_fails(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = VersionStore(memory, anchor_every=1)
    publisher = Publisher(store)
    large = [{"w": torch.full((64, 64), 1 + version / 128, dtype=torch.bfloat16)} for version in range(3)]
    publisher.publish(0, cut_whole(large[0]))
    publisher.wait()
    # There is room for the delta, and not for the anchor of 8 KiB.
    with file_size_limit(4096), caplog.at_level(logging.WARNING):
        publisher.publish(1, cut_whole(large[1]))
        publisher.wait()
    assert store.latest() == 1
    assert "version 1 is published, but its other packages are not" in caplog.text
    publisher.publish(2, cut_whole(large[2]))
    publisher.wait()
    assert {package.base_version for package in store.packages() if package.version == 2} == {1, 0, None}


def test_tensors_are_cut_for_the_ranks_that_hold_them(memory: Path) -> None:
    model = ModelShape({"gate_proj.weight": (8, 4), "norm.weight": (4,)}, 4, 4, 2, 8)
    tensors = {name: torch.randn(shape) for name, shape in model.shapes.items()}
    manifest = ShardedStore(memory, tp=4, model=model).publish(0, tensors)[0]
    assert [(piece.name, piece.start, piece.chunk) for piece in manifest.pieces] == [
        *(("gate_proj.weight", (2 * rank, 0), 0 if rank == 0 else rank + 1) for rank in range(4)),
        ("norm.weight", (0,), 1),
    ]
