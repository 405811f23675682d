"""Trainers of n ranks that publish by parts, and engines of m ranks that fetch only their shards."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.transfer import made_up
from benchmarks.transfer.scope import Scope
from rose.accept.report import Report
from rose.transfer.apply.apply import prepare
from rose.transfer.codec import codec
from rose.transfer.codec.bits import dtype_name, from_bits, to_bits
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.layout.shards import ModelShape, misfit_of, receiver_regions
from rose.transfer.package.cuts import Cut
from rose.transfer.package.manifest import TensorInfo
from rose.transfer.package.parts import Writer
from rose.transfer.sources.rank_tensors import rank_tensors
from rose.transfer.store.store import ALONE, Published, VersionStore
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.server import StoreServer

SHARE = 0.03
OVERHEAD_MOST = 1.05
_HEADS, _KV_HEADS = 8, 4
_LAYERS = 2
_Tensors = dict[str, torch.Tensor]


def measure(report: Report, folder: Path, scope: Scope) -> None:
    model, counts = _model(scope.shards_width, scope.shards_vocabulary), scope.shards_ranks
    base, new = _weights(model)
    receivers = {(m, rank): receiver_regions(model, m, rank) for m in counts for rank in range(m)}
    own = {receiver: _own_bytes(regions, base, new) for receiver, regions in receivers.items()}
    wrong = 0
    worst: dict[str, tuple[float, float]] = {}
    for n in counts:
        store = _published(folder / f"fsdp-{n}", model, counts[-1], n, (base, new))
        with StoreServer(store) as server:
            for (m, rank), regions in receivers.items():
                staged = Receiver(server.url, None, folder / f"staging-{n}-{m}-{rank}").fetch(1, 0, regions)
                engine, expected = _slices(base, regions), _slices(new, regions)
                prepare(staged, engine, regions).commit()
                wrong += sum(not torch.equal(engine[name], tensor) for name, tensor in expected.items())
                pair, before = f"FSDP({n}) -> TP({m})", worst.get(f"FSDP({n}) -> TP({m})", (0.0, 0.0))
                chunks = {chunk for manifest in staged.manifests for chunk in manifest.chunks_for(regions)}
                chunk_bytes = sum(chunk.size_bytes for chunk in chunks)
                taken = chunk_bytes / own[m, rank], staged.wire_bytes / own[m, rank]
                worst[pair] = max(before[0], taken[0]), max(before[1], taken[1])
                staged.remove()
    name = f"tensors that are not bit-exact, {len(worst)} pairs of FSDP(n) -> TP(m)"
    report.claim(name, wrong, "tensors", 0, "lower")
    for index, what in enumerate(("chunks", "chunks and manifest")):
        most = max(ratios[index] for ratios in worst.values())
        report.claim(f"  bytes of {what} against a delta of a rank's own", most, "x", OVERHEAD_MOST, "lower")
    report.detail["shards"] = {
        "changed_share": SHARE,
        "elements": sum(tensor.numel() for tensor in base.values()),
        "worst_rank_against_a_delta_of_its_own": {
            pair: {"chunks": round(ratios[0], 4), "chunks_and_manifest": round(ratios[1], 4)}
            for pair, ratios in worst.items()
        },
    }


def _model(width: int, vocabulary: int) -> ModelShape:
    """Return the shapes of a Llama with tied embeddings."""
    head = width // _HEADS
    inner = 11 * width // 4
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, width)}
    for layer in range(_LAYERS):
        path = f"model.layers.{layer}"
        shapes |= {
            f"{path}.self_attn.q_proj.weight": (width, width),
            f"{path}.self_attn.k_proj.weight": (_KV_HEADS * head, width),
            f"{path}.self_attn.v_proj.weight": (_KV_HEADS * head, width),
            f"{path}.self_attn.o_proj.weight": (width, width),
            f"{path}.mlp.gate_proj.weight": (inner, width),
            f"{path}.mlp.up_proj.weight": (inner, width),
            f"{path}.mlp.down_proj.weight": (width, inner),
            f"{path}.input_layernorm.weight": (width,),
            f"{path}.post_attention_layernorm.weight": (width,),
        }
    shapes["model.norm.weight"] = (width,)
    return ModelShape(shapes, _HEADS, _KV_HEADS, head, vocabulary)


def _weights(model: ModelShape) -> tuple[_Tensors, _Tensors]:
    base, new = {}, {}
    for seed, (name, shape) in enumerate(model.shapes.items()):
        whole = Region.whole(shape)
        before, after = made_up.pair(whole.elements, SHARE, seed)
        base[name], new[name] = (from_bits(bits.reshape(shape), "bfloat16") for bits in (before, after))
    return base, new


def _published(folder: Path, model: ModelShape, tp: int, ranks: int, versions: Sequence[_Tensors]) -> VersionStore:
    """Publish versions by `ranks` trainer ranks for engines of up to `tp` ranks; return a store."""
    cut = cells(model, tp)
    stores = [VersionStore(folder) for _ in range(ranks)]
    for version, tensors in enumerate(versions):
        for rank, store in enumerate(stores):
            own = pieces(_rows(model, rank, ranks), cut)
            part = {piece: tensors[piece.name][piece.region.slices] for piece in own}
            store.publish_part(version, Writer(rank, ranks), cut_part(part, model))
    return stores[0]


def _rows(model: ModelShape, rank: int, ranks: int) -> dict[str, tuple[Region, ...]]:
    """Return an FSDP2 rank's rows of each tensor: chunks of ceil(rows / ranks)."""
    rows: dict[str, tuple[Region, ...]] = {}
    for name in model.shapes:
        whole = model.published(name)
        length = -(-whole.shape[0] // ranks)
        if (box := whole.between(0, rank * length, (rank + 1) * length)) is not None:
            rows[name] = (box,)
    return rows


def _slices(tensors: _Tensors, regions: dict[str, Region]) -> _Tensors:
    return {name: tensors[name][region.slices].contiguous().clone() for name, region in regions.items()}


def _own_bytes(regions: dict[str, Region], base: _Tensors, new: _Tensors) -> int:
    before, after = (
        {name: to_bits(name, tensor) for name, tensor in _slices(tensors, regions).items()} for tensors in (base, new)
    )
    return sum(len(codec.encode(before[name], after[name])) for name in regions)


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor that no receiver splits. The ranks in `holders` hold it."""

    name: str
    region: Region
    holders: frozenset[int]


def cells(model: ModelShape, tp: int) -> dict[str, tuple[Piece, ...]]:
    finest = [receiver_regions(model, tp, rank) for rank in range(tp)]
    counts = [count for count in range(1, tp) if tp % count == 0 and misfit_of(model, count) is None]
    receivers = [*finest, *(receiver_regions(model, count, rank) for count in counts for rank in range(count))]
    cut: dict[str, tuple[Piece, ...]] = {}
    for name in model.shapes:
        boxes = grid(model.published(name), {regions[name] for regions in receivers if name in regions})
        own = {rank: regions[name] for rank, regions in enumerate(finest) if name in regions}
        holders = {box: frozenset(rank for rank in own if own[rank].contains(box)) for box in boxes}
        cut[name] = tuple(Piece(name, box, holders[box]) for box in boxes)
    return cut


def grid(whole: Region, regions: Iterable[Region]) -> list[Region]:
    bounds = [{start, stop} for start, stop in zip(whole.start, whole.stop, strict=True)]
    for region in regions:
        for axis, bound in enumerate(bounds):
            bound.update((region.start[axis], region.stop[axis]))
    intervals = [
        [(a, b) for a, b in itertools.pairwise(sorted(bound)) if whole.start[axis] <= a and b <= whole.stop[axis]]
        for axis, bound in enumerate(bounds)
    ]
    return [Region(tuple(a for a, _ in box), tuple(b for _, b in box)) for box in itertools.product(*intervals)]


class ShardedStore(VersionStore):
    """A store whose versions are cut for engines of up to `tp` ranks."""

    def __init__(self, folder: Path, *, model: ModelShape, tp: int = 1, **options: Any) -> None:
        super().__init__(folder, **options)
        self._model, self._cut = model, cells(model, tp)

    def publish(
        self, version: int, tensors: Mapping[str, torch.Tensor], *, visible: Callable[[], object] = lambda: None
    ) -> Published:
        whole = {name: tensors[name] for name, tensor in rank_tensors(tensors).items() if not tensor.tied}
        for name, tensor in whole.items():
            if tuple(tensor.shape) != self._model.shapes[name]:
                raise TransferError(f"tensor {name!r} has shape {list(tensor.shape)}, unlike the model's")
        part = {piece: whole[piece.name][piece.region.slices] for name in whole for piece in self._cut[name]}
        published = self.publish_part(version, ALONE, cut_part(part, self._model), written=visible)
        assert published is not None, "there are no other ranks to wait for"
        return published


def pieces(boxes: Mapping[str, tuple[Region, ...]], cells: Mapping[str, tuple[Piece, ...]]) -> list[Piece]:
    cut = []
    for name, regions in boxes.items():
        for region in regions:
            shared = ((region.intersect(cell.region), cell.holders) for cell in cells.get(name, ()))
            placed = [Piece(name, box, holders) for box, holders in shared if box is not None]
            if (covered := sum(piece.region.elements for piece in placed)) != region.elements:
                raise TransferError(f"tensor {name!r}: {region} has only {covered} elements in the model's tensor")
            cut += placed
    return cut


def cut_part(pieces: Mapping[Piece, torch.Tensor], model: ModelShape) -> list[Cut]:
    cuts = []
    for piece, tensor in pieces.items():
        info = TensorInfo(piece.name, dtype_name(piece.name, tensor), model.published(piece.name).stop)
        if tuple(tensor.shape) != piece.region.shape:
            raise TransferError(f"tensor {piece.name!r} at {piece.region} has shape {list(tensor.shape)}")
        cuts.append(Cut(info, piece.region, piece.holders, tensor))
    return cuts
