"""Splits a model into shards by rank, as SGLang does, and into the boxes that a trainer publishes."""

from collections.abc import Mapping
from dataclasses import dataclass

from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region, grid

_VOCABULARY = ("embed_tokens", "lm_head")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shapes of a model's whole tensors (padded after `vocab_size`), and the sizes that decide the split."""

    shapes: Mapping[str, tuple[int, ...]]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    def published(self, name: str) -> Region:
        if name not in self.shapes:
            raise TransferError(f"tensor {name!r} is not one of the model's {len(self.shapes)}")
        shape = self.shapes[name]
        return Region.whole((self.vocab_size, *shape[1:]) if _kind(name)[0] in _VOCABULARY else shape)


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor that no receiver splits. The ranks in `holders` hold it."""

    name: str
    region: Region
    holders: frozenset[int]


def receiver_regions(model: ModelShape, tp: int, rank: int) -> dict[str, Region]:
    """Return the boxes that one of `tp` SGLang ranks holds, without padding. If there are more ranks than key and
    value heads, several ranks hold one head. Raises TransferError if SGLang cannot split the model."""
    check_rank(tp, rank)
    multiple = 64  # SGLang pads the vocabulary to a multiple of this.
    if _up_to_multiple(model.vocab_size, multiple) % tp:
        multiple *= tp
    if misfit := _misfit(model, tp):
        raise TransferError(misfit)
    rows = _up_to_multiple(model.vocab_size, multiple) // tp
    regions = {name: _tensor_parallel_region(model, name, tp, rank, rows) for name in model.shapes}
    return {name: region for name, region in regions.items() if region is not None}


def cells(model: ModelShape, tp: int) -> dict[str, tuple[Piece, ...]]:
    check_rank(tp, 0)
    finest = [receiver_regions(model, tp, rank) for rank in range(tp)]
    counts = [count for count in range(1, tp) if tp % count == 0 and _misfit(model, count) is None]
    receivers = [*finest, *(receiver_regions(model, count, rank) for count in counts for rank in range(count))]
    cut: dict[str, tuple[Piece, ...]] = {}
    for name in model.shapes:
        boxes = grid(model.published(name), {regions[name] for regions in receivers if name in regions})
        own = {rank: regions[name] for rank, regions in enumerate(finest) if name in regions}
        holders = {box: frozenset(rank for rank in own if own[rank].contains(box)) for box in boxes}
        cut[name] = tuple(Piece(name, box, holders[box]) for box in boxes)
    return cut


def check_rank(ranks: int, rank: int) -> None:
    if not 0 <= rank < ranks:
        raise TransferError(f"rank {rank} of {ranks} ranks: expected 0 or more and less than the number of ranks")


def _misfit(model: ModelShape, tp: int) -> str | None:
    if model.num_heads % tp:
        return f"{model.num_heads} heads cannot be split over {tp} tensor-parallel ranks"
    if max(model.num_kv_heads, tp) % min(model.num_kv_heads, tp):
        return f"{model.num_kv_heads} key and value heads can be neither split over {tp} ranks nor repeated evenly"
    return None


def _tensor_parallel_region(model: ModelShape, name: str, tp: int, rank: int, vocabulary_rows: int) -> Region | None:
    kind, leaf = _kind(name)
    whole, shape = model.published(name), model.shapes[name]
    if kind in _VOCABULARY:
        return whole.between(0, rank * vocabulary_rows, (rank + 1) * vocabulary_rows)
    if kind in ("k_proj", "v_proj"):
        index = rank * model.num_kv_heads // tp
        rows = max(1, model.num_kv_heads // tp) * model.head_dim
        return whole.between(0, index * model.head_dim, index * model.head_dim + rows)
    if kind in ("q_proj", "gate_proj", "up_proj"):
        axis = 0
    elif kind in ("o_proj", "down_proj") and leaf == "weight":
        axis = 1
    else:
        return whole
    if len(shape) <= axis or shape[axis] % tp:
        raise TransferError(f"tensor {name!r} of shape {shape} cannot be split over {tp} ranks along axis {axis}")
    step = shape[axis] // tp
    return whole.between(axis, rank * step, (rank + 1) * step)


def _kind(name: str) -> tuple[str, str]:
    module, _, leaf = name.rpartition(".")
    return (module.rpartition(".")[2], leaf) if leaf in ("weight", "bias") else ("", leaf)


def _up_to_multiple(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
