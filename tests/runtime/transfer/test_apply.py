from __future__ import annotations

import hashlib
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rose.runtime.transfer.apply import prepare
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import Manifest
from rose.runtime.transfer.staged import Staged
from rose.runtime.transfer.store import VersionStore

DTYPES = {"a": torch.bfloat16, "b": torch.float16, "c": torch.float32, "d": torch.bfloat16}
Weights = dict[str, torch.Tensor]


def copy(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def same(left: Weights, right: Weights) -> bool:
    return all(torch.equal(left[name].view(torch.uint8), right[name].view(torch.uint8)) for name in right)


class History:
    """Five versions of a small model, in a store, with the weights of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = VersionStore(folder / "store", anchor_every=100)
        generator = torch.Generator().manual_seed(0)
        masters = {name: 0.02 * torch.randn(30, 11, generator=generator) for name in DTYPES}
        self.versions: list[Weights] = []
        for version in range(5):
            weights = {name: masters[name].to(dtype, copy=True) for name, dtype in DTYPES.items()}
            self.store.publish(version, weights)
            self.versions.append(weights)
            for tensor in masters.values():
                tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=1e-5)

    def stage(self, name: str, stems: list[str]) -> Path:
        """A staged folder of these packages, as a receiver would leave it."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for index, stem in enumerate(stems):
            for kind in ("json", "bin"):
                shutil.copyfile(self.store.folder / f"{stem}.{kind}", folder / f"{index:02d}.{kind}")
        return folder


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(tmp_path_factory.mktemp("history"))


def delta(version: int) -> str:
    return f"{version:08d}-from-{version - 1:08d}"


def test_delta_chain_and_anchor_reach_the_version_in_place(history: History) -> None:
    for stems, start in (
        ([delta(1)], 0),
        ([delta(2), delta(3), delta(4)], 1),
        (["00000000-anchor", delta(1)], 3),
    ):
        staged = Staged.open(history.stage("good", stems))
        engine = copy(history.versions[start])
        addresses = [tensor.data_ptr() for tensor in engine.values()]
        prepared = prepare(staged, engine)
        assert same(engine, history.versions[start]), "nothing is written before commit"
        prepared.commit()
        assert same(engine, history.versions[staged.version])
        assert [tensor.data_ptr() for tensor in engine.values()] == addresses
        assert prepared.verify() == staged.manifests[-1].weights_sha256


def damage(rng: random.Random, history: History) -> tuple[list[str], int, str]:
    """A way from version 1 to 4, as packages, the engine's version, and what shall go wrong."""
    stems = [delta(2), delta(3), delta(4)]
    kind = rng.choice(["flip", "flip", "flip", "truncate", "extend", "swap_blobs", "base", "twice", "order", "gap"])
    at = 1
    if kind == "base":
        at = rng.choice([0, 2, 3])
    elif kind == "twice":
        at = 4
    elif kind == "order":
        rng.shuffle(stems)
        if stems == [delta(2), delta(3), delta(4)]:
            stems.reverse()
    elif kind == "gap":
        del stems[1]
    return stems, at, kind


def test_two_thousand_faults_are_all_refused(history: History) -> None:
    """Flipped bits, lost ends, exchanged files, wrong bases, a delta twice, links out of order or missing."""
    rng = random.Random(0)
    counts: dict[str, int] = {}
    # Without a fault this way is accepted, so each refusal below is the fault's doing.
    prepare(Staged.open(history.stage("bad", [delta(2), delta(3), delta(4)])), copy(history.versions[1]))
    for _ in range(2_200):
        stems, at, kind = damage(rng, history)
        folder = history.stage("bad", stems)
        victim = folder / f"{rng.randrange(len(stems)):02d}.{rng.choice(['bin', 'json'])}"
        data = bytearray(victim.read_bytes())
        if kind == "flip":
            bit = rng.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
            victim.write_bytes(data)
        elif kind == "truncate":
            victim.write_bytes(data[: rng.randrange(len(data))])
        elif kind == "extend":
            victim.write_bytes(data + rng.randbytes(1 + rng.randrange(9)))
        elif kind == "swap_blobs":
            one, other = folder / "00.bin", folder / "01.bin"
            one_bytes = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(one_bytes)
        engine = copy(history.versions[at])
        with pytest.raises(TransferError):
            prepare(Staged.open(folder), engine)
        assert same(engine, history.versions[at]), kind
        counts[kind] = counts.get(kind, 0) + 1
    assert len(counts) == 8, counts
    assert min(counts.values()) > 100, counts


def test_tensor_hashes_hold_where_the_blob_hash_was_forged(history: History) -> None:
    """The second line: a blob whose SHA-256 fits (a faulty relay hashed what it had) but whose content does not."""
    rng = random.Random(1)
    refused = 0
    for _ in range(800):
        folder = history.stage("forged", [delta(2)])
        manifest = Manifest.from_bytes((folder / "00.json").read_bytes())
        blob = bytearray((folder / "00.bin").read_bytes())
        bit = rng.randrange(8 * len(blob))
        blob[bit // 8] ^= 1 << bit % 8
        (folder / "00.bin").write_bytes(blob)
        forged = replace(manifest, blob_sha256=hashlib.sha256(blob).hexdigest())
        (folder / "00.json").write_bytes(forged.to_bytes())
        engine = copy(history.versions[1])
        reason, prepared = "", None
        try:
            prepared = prepare(Staged.open(folder), engine)
        except TransferError as error:
            reason = str(error)
        if prepared is None:
            assert "tensor '" in reason
            assert same(engine, history.versions[1])
            refused += 1
        else:  # A bit that means nothing to zstd: then the result is exact all the same.
            prepared.commit()
            assert same(engine, history.versions[2])
    assert refused > 700


def test_errors_name_tensor_expected_and_found(history: History) -> None:
    staged = Staged.open(history.stage("errors", [delta(2)]))
    engine = copy(history.versions[1])
    entry = staged.manifests[0].tensors[2]
    engine["c"][3, 3] += 1
    with pytest.raises(
        TransferError, match=f"tensor 'c' of the engine is [0-9a-f]{{32}}, expected base {entry.base_xxh3}"
    ):
        prepare(staged, engine)
    with pytest.raises(
        TransferError, match=r"tensor 'b' of the engine is float16\[11, 30\], expected float16\[30, 11\]"
    ):
        prepare(staged, {**engine, "b": engine["b"].reshape(11, 30)})
    with pytest.raises(TransferError, match=r"tensor 'b' of the engine is bfloat16.*expected float16"):
        prepare(staged, {**engine, "b": engine["b"].to(torch.bfloat16)})
    with pytest.raises(TransferError, match=r"the engine lacks \['d'\], the version lacks \['e'\]"):
        prepare(staged, {"a": engine["a"], "b": engine["b"], "c": engine["c"], "e": engine["d"]})


def test_one_ulp_of_drift_is_refused(history: History) -> None:
    staged = Staged.open(history.stage("drift", [delta(2)]))
    for name in DTYPES:
        engine = copy(history.versions[1])
        engine[name].view(torch.uint8).flatten()[0] ^= 1
        with pytest.raises(TransferError, match=f"tensor '{name}' of the engine"):
            prepare(staged, engine)


def test_a_commit_is_whole_whatever_came_between_and_happens_once(history: History) -> None:
    engine = copy(history.versions[1])
    late = prepare(Staged.open(history.stage("late", [delta(2)])), engine)
    first = prepare(Staged.open(history.stage("first", [delta(2), delta(3)])), engine)
    first.commit()
    late.commit()
    assert same(engine, history.versions[2])
    with pytest.raises(TransferError, match="version 2 was already committed"):
        late.commit()
    with pytest.raises(TransferError, match=r"of the engine is \w+, expected \w+ of version 3"):
        first.verify()


def test_an_empty_or_missing_folder_is_no_version(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="there is no staged version"):
        Staged.open(tmp_path / "none")
