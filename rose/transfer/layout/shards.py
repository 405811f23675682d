"""Splits a model into shards by rank, as SGLang does."""

from collections.abc import Mapping
from dataclasses import dataclass

from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region

_VOCABULARY = ("embed_tokens", "lm_head")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shapes of a model's whole tensors, and the sizes by which SGLang splits them among ranks. In `shapes`, the
    vocabulary may be padded beyond `vocab_size` rows."""

    shapes: Mapping[str, tuple[int, ...]]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    def published(self, name: str) -> Region:
        shape = self.shapes[name]
        return Region.whole((self.vocab_size, *shape[1:]) if _kind(name)[0] in _VOCABULARY else shape)


def receiver_regions(model: ModelShape, tp: int, rank: int) -> dict[str, Region]:
    """Return the boxes that one of `tp` SGLang ranks holds, without padding. If there are more ranks than key and
    value heads, several ranks hold one head. Raises TransferError if SGLang cannot split the model."""
    multiple = 64  # SGLang pads the vocabulary to a multiple of this.
    if _up_to_multiple(model.vocab_size, multiple) % tp:
        multiple *= tp
    if misfit := misfit_of(model, tp):
        raise TransferError(misfit)
    rows = _up_to_multiple(model.vocab_size, multiple) // tp
    regions = {name: _tensor_parallel_region(model, name, tp, rank, rows) for name in model.shapes}
    return {name: region for name, region in regions.items() if region is not None}


def misfit_of(model: ModelShape, tp: int) -> str | None:
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
