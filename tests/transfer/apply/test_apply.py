import hashlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.transfer.shards import ShardedStore
from rose.transfer.apply.apply import prepare
from rose.transfer.apply.audit import find_drift
from rose.transfer.apply.staged import Staged
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.layout.shards import ModelShape, receiver_regions
from rose.transfer.package.manifest import Manifest
from tests.long_form import usual

DTYPES = {
    "embed_tokens.weight": torch.bfloat16,
    "gate_proj.weight": torch.float16,
    "down_proj.weight": torch.float32,
    "norm.weight": torch.bfloat16,
}
SHAPES = {"embed_tokens.weight": (70, 3), "gate_proj.weight": (8, 5), "down_proj.weight": (5, 8), "norm.weight": (7,)}
MODEL = ModelShape(SHAPES, num_heads=4, num_kv_heads=4, head_dim=2, vocab_size=70)
Weights = dict[str, torch.Tensor]
KINDS = ["flip"] * 10 + ["truncate", "extend", "swap", "exchange", "lose", "base", "twice", "layout", "order", "gap"]


def copy(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def same(left: Weights, right: Weights) -> bool:
    return all(torch.equal(left[name].view(torch.uint8), right[name].view(torch.uint8)) for name in right)


class History:
    """Five versions of a small model, in a store cut for `tp` ranks, with the weights of each."""

    def __init__(self, folder: Path, names: Iterable[str], tp: int) -> None:
        self.folder = folder
        self.store = ShardedStore(folder / "store", anchor_every=100, tp=tp, model=MODEL)
        generator = torch.Generator().manual_seed(0)
        masters = {name: 0.02 * torch.randn(SHAPES[name], generator=generator) for name in names}
        self.versions: list[Weights] = []
        for version in range(5):
            weights = {name: master.to(DTYPES[name], copy=True) for name, master in masters.items()}
            self.store.publish(version, weights)
            self.versions.append(weights)
            for tensor in masters.values():
                tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=1e-4)

    def stage(self, name: str, stems: Iterable[str], regions: dict[str, Region] | None = None) -> Path:
        """A staged folder of these packages, as a receiver would leave it."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "chunks").mkdir(parents=True)
        for index, stem in enumerate(stems):
            data = (self.store.folder / f"{stem}.json").read_bytes()
            (folder / f"{index:02d}.json").write_bytes(data)
            for chunk in Manifest.from_bytes(data).chunks_for(regions):
                source = self.store.folder / "chunks" / chunk.sha256[:2] / chunk.sha256
                shutil.copyfile(source, folder / "chunks" / chunk.sha256)
        return folder


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory: to write thousands of small files to a disk would take longer than all else here."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def small(memory: Path) -> History:
    return History(memory / "small", ["gate_proj.weight", "norm.weight"], tp=2)


@pytest.fixture(scope="module")
def history(memory: Path) -> History:
    return History(memory, SHAPES, tp=4)


def delta(version: int, base: int | None = None) -> str:
    return f"{version:08d}-from-{version - 1 if base is None else base:08d}"


WAYS = [
    ([delta(1)], 0),
    ([delta(2), delta(3), delta(4)], 1),
    ([delta(2, 0), delta(4, 2)], 0),
    ([delta(4, 0)], 0),
    (["00000000-anchor", delta(1)], 3),
]


@pytest.mark.parametrize(("stems", "start"), WAYS)
def test_each_way_reaches_the_version_in_place(history: History, stems: list[str], start: int) -> None:
    staged = Staged.open(history.stage("good", stems))
    engine = copy(history.versions[start])
    addresses = [tensor.data_ptr() for tensor in engine.values()]
    prepared = prepare(staged, engine)
    assert same(engine, history.versions[start]), "nothing is written before commit"
    prepared.commit()
    assert same(engine, history.versions[staged.version])
    assert [tensor.data_ptr() for tensor in engine.values()] == addresses
    assert find_drift(engine, staged.manifests[-1]) is None


@pytest.mark.parametrize(("tp", "stems", "start"), [(2, *WAYS[1]), *((4, *way) for way in WAYS)])
def test_a_rank_needs_its_own_chunks_only_and_is_brought_along(
    history: History, tp: int, stems: list[str], start: int
) -> None:
    staged_bytes = []
    for rank in range(tp):
        regions = receiver_regions(MODEL, tp, rank)
        folder = history.stage("rank", stems, regions)
        staged_bytes.append(sum(path.stat().st_size for path in (folder / "chunks").iterdir()))
        staged = Staged.open(folder, regions)
        # As an engine has it: its box alone, once packed and once in the middle of something larger.
        engine = {name: history.versions[start][name][box.slices].clone() for name, box in regions.items()}
        around = torch.full((9, 9), 7.0, dtype=torch.float32)
        inner = around[1 : 1 + engine["down_proj.weight"].shape[0], 1 : 1 + engine["down_proj.weight"].shape[1]]
        engine["down_proj.weight"] = inner.copy_(engine["down_proj.weight"])
        prepare(staged, engine, regions).commit()
        for name, box in regions.items():
            assert torch.equal(engine[name], history.versions[staged.version][name][box.slices]), (rank, name)
        inner.fill_(7)
        assert (around == 7).all()
        drift = find_drift(engine, staged.manifests[-1], regions)
        assert drift is not None
        assert drift.startswith("tensor 'down_proj.weight' at [0, ")
    whole = sum(chunk.size_bytes for m in staged.manifests for chunk in m.chunks)
    assert max(staged_bytes) < whole
    # Only `norm` is wanted by all.
    assert sum(staged_bytes) < whole + tp * 200 * len(stems)


def test_a_rank_that_the_version_was_not_cut_for_is_refused(history: History) -> None:
    box = Region((0, 0), (8, 3))
    staged = Staged.open(history.stage("uncut", [delta(2)]))
    part = history.versions[1]["embed_tokens.weight"][box.slices].clone()
    with pytest.raises(TransferError, match=r"'embed_tokens\.weight' is not cut at the edges of \[0:8, 0:3\]"):
        prepare(staged, {"embed_tokens.weight": part}, {"embed_tokens.weight": box})
    with pytest.raises(TransferError, match=r"and \[0:80, 0:3\] is not in it"):
        prepare(staged, {"embed_tokens.weight": part}, {"embed_tokens.weight": Region((0, 0), (80, 3))})
    with pytest.raises(TransferError, match=r"lacks tensors \['lm_head\.weight'\]"):
        prepare(staged, {"lm_head.weight": part}, {"lm_head.weight": box})


class Way:
    """A good way from version 2 to 4, in which one thing at a time goes wrong and is put right again."""

    def __init__(self, history: History, stems: list[str]) -> None:
        self.folder = history.stage("bad", stems)
        self.files = {path: path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file()}
        self.chunks = [path for path in self.files if path.parent.name == "chunks"]
        self.manifests = [path for path in self.files if path.suffix == ".json"]
        self.earlier = (history.store.folder / f"{delta(2)}.json").read_bytes()
        self.engines = [copy(version) for version in history.versions]
        self.touched: set[Path] = set()

    def open(self, at: int, layout: str | None = None) -> None:
        engine = self.engines[at]
        if layout is not None:
            engine = {**engine, layout: engine[layout].flatten()[:-1]}
        prepare(Staged.open(self.folder), engine)

    def inject(self, kind: str, rng: random.Random) -> tuple[int, str | None]:
        """Break it; returns the version of the engine, and the tensor that has another layout there."""
        victim = rng.choice(list(self.files))
        data = bytearray(self.files[victim])
        if kind == "flip":
            bit = rng.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
            self.write(victim, data)
        elif kind == "truncate":
            self.write(victim, data[: rng.randrange(len(data))])
        elif kind == "extend":
            self.write(victim, data + rng.randbytes(1 + rng.randrange(9)))
        elif kind == "lose":
            self.touched.add(victim)
            victim.unlink()
        elif kind in ("swap", "order"):
            one, other = rng.sample(self.chunks, 2) if kind == "swap" else self.manifests
            self.write(one, self.files[other])
            self.write(other, self.files[one])
        elif kind == "exchange":  # The two ends of one chunk.
            chunk = rng.choice(self.chunks)
            cut = rng.randrange(1, len(self.files[chunk]))
            self.write(chunk, self.files[chunk][cut:] + self.files[chunk][:cut])
        elif kind == "gap":
            self.write(self.manifests[0], self.earlier)
        at = {"base": rng.choice([0, 1, 3]), "twice": 4}.get(kind, 2)
        return at, rng.choice(list(self.engines[0])) if kind == "layout" else None

    def write(self, path: Path, data: bytes) -> None:
        self.touched.add(path)
        path.write_bytes(data)

    def mend(self) -> None:
        for path in self.touched:
            path.write_bytes(self.files[path])
        self.touched.clear()


@pytest.mark.parametrize(
    ("tp", "stems", "faults"),
    [(1, [delta(4, 2)], usual(200, long=8_000)), (2, [delta(3), delta(4)], usual(200, long=1_000))],
)
def test_hundreds_of_faults_are_all_refused(memory: Path, tp: int, stems: list[str], faults: int) -> None:
    """Flipped bits, lost ends, exchanged files, wrong bases and layouts, a delta twice, links in disorder or lost."""
    rng = random.Random(0)
    way = Way(History(memory / f"faults-{tp}", ["gate_proj.weight", "norm.weight"], tp), stems)
    # A manifest and a chunk; or two manifests with a chunk for each of two ranks, and one for both.
    assert len(way.files) == (2 if tp == 1 else 2 * (1 + 3))
    kinds = KINDS if tp > 1 else [kind for kind in KINDS if kind not in ("swap", "order", "gap")]
    counts: Counter[str] = Counter()
    for number in range(faults):
        kind = rng.choice(kinds)
        at, layout = way.inject(kind, rng)
        with pytest.raises(TransferError):
            way.open(at, layout)
        way.mend()
        counts[kind] += 1
        if number % 100 == 0:  # Without a fault the way is accepted, so each refusal is the fault's doing.
            way.open(2)
    assert len(counts) == len(set(kinds)), counts
    assert min(counts.values()) > faults // 50, counts


def test_piece_hashes_hold_where_the_chunk_hash_was_forged(small: History) -> None:
    """The second line: a chunk whose SHA-256 fits (a faulty relay hashed what it had) but whose content does not."""
    rng = random.Random(1)
    folder = small.stage("forged", [delta(2)])
    manifest = Manifest.from_bytes((folder / "00.json").read_bytes())
    places = [folder / "chunks" / chunk.sha256 for chunk in manifest.chunks]
    refused, forgeries = 0, usual(80, long=1_000)
    for _ in range(forgeries):
        index = rng.randrange(len(places))
        content = bytearray(places[index].read_bytes())
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        chunk = replace(manifest.chunks[index], sha256=hashlib.sha256(content).hexdigest())
        forged = folder / "chunks" / chunk.sha256
        places[index].rename(forged)
        forged.write_bytes(content)
        chunks = (*manifest.chunks[:index], chunk, *manifest.chunks[index + 1 :])
        (folder / "00.json").write_bytes(replace(manifest, chunks=chunks).to_bytes())
        engine = copy(small.versions[1])
        reason, prepared = "", None
        try:
            prepared = prepare(Staged.open(folder), engine)
        except TransferError as error:
            reason = str(error)
        if prepared is None:
            assert "tensor '" in reason
            assert same(engine, small.versions[1])
            refused += 1
        else:  # A bit that means nothing to the codec: then the result is exact all the same.
            prepared.commit()
            assert same(engine, small.versions[2])
        content[bit // 8] ^= 1 << bit % 8
        forged.rename(places[index])
        places[index].write_bytes(content)
    assert refused > 0.8 * forgeries


def test_errors_name_tensor_expected_and_found(history: History) -> None:
    staged = Staged.open(history.stage("errors", [delta(2)]))
    engine = copy(history.versions[1])
    engine["norm.weight"][3] += 1
    entry = staged.manifests[0].pieces[-1]
    assert entry.name == "norm.weight"
    with pytest.raises(
        TransferError,
        match=rf"tensor 'norm\.weight' at \[0\] has hash \w{{32}}, expected base {entry.base_xxh3}: .* from an anchor",
    ):
        prepare(staged, engine)
    gate = "gate_proj.weight"
    with pytest.raises(
        TransferError, match=r"'gate_proj\.weight' of the engine is float16\[5, 8\], expected float16\[8, 5\]"
    ):
        prepare(staged, {**engine, gate: engine[gate].reshape(5, 8)})
    with pytest.raises(TransferError, match=r"'gate_proj\.weight' of the engine is bfloat16.*expected float16"):
        prepare(staged, {**engine, gate: engine[gate].to(torch.bfloat16)})
    norm = engine.pop("norm.weight")
    with pytest.raises(TransferError, match=r"the engine lacks \['norm\.weight'\], the version lacks \['e'\]"):
        prepare(staged, {**engine, "e": norm})


def test_a_commit_happens_once(history: History) -> None:
    engine = copy(history.versions[1])
    prepared = prepare(Staged.open(history.stage("late", [delta(2)])), engine)
    prepared.commit()
    assert same(engine, history.versions[2])
    with pytest.raises(TransferError, match="version 2 was already committed"):
        prepared.commit()


def test_an_empty_or_missing_folder_is_no_version(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="there is no staged version"):
        Staged.open(tmp_path / "none")


def test_what_changes_is_written_to_an_engine_that_computes_in_a_wider_type(history: History) -> None:
    staged = Staged.open(history.stage("v3", [delta(2), delta(3)]))
    wide = {name: tensor.double() for name, tensor in history.versions[1].items()}
    prepare(staged, copy(history.versions[1])).commit(wide)
    assert same({name: tensor.to(DTYPES[name]) for name, tensor in wide.items()}, history.versions[3])
