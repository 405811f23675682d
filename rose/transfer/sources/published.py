"""Gives a trainer's tensors the names and types of the fleet's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rose.transfer.codec.bits import integers
from rose.transfer.errors import TransferError
from rose.transfer.package.cuts import elements
from rose.transfer.sources import adapter
from rose.transfer.sources.adapter import Adapter
from rose.transfer.sources.checkpoint import EMBEDDING, HEAD, Checkpoint
from rose.transfer.sources.delta import Delta
from rose.transfer.sources.rank_tensors import RankTensor, rank_tensors

Weights = Mapping[str, torch.Tensor] | Path
Newest = Callable[[], tuple[int, Mapping[str, torch.Tensor]]]  # The version published last, and its tensors.
_ROUNDED = {"float32", "bfloat16", "float16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """This rank's tensors by published name. `names` are the names of the whole model, or None if they are unknown."""

    tensors: Mapping[str, RankTensor]
    names: frozenset[str] | None
    merged: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()


def read(weights: Weights, checkpoint: Checkpoint | None, newest: Newest) -> Source:
    """Return the tensors of a state dict or folder, with the names and types of `checkpoint`. Raises TransferError."""
    merged: list[str] = []
    if isinstance(weights, Path):
        if (weights / adapter.CONFIG).exists():
            lora = Adapter(weights)
            checkpoint = checkpoint or lora.base()
            tensors, merged = lora.merge(checkpoint)
        elif (delta := Delta.read(weights)) is not None:
            tensors = delta.tensors(*newest())
        else:
            folder = Checkpoint(weights)
            checkpoint, tensors = checkpoint or folder, folder.tensors
    else:
        tensors = rank_tensors(weights)
    model = None
    if checkpoint is not None:
        model = checkpoint.tensors
        if checkpoint.tied:
            tensors = _one_name(tensors, model)
    fitted = {name: _fit(name, tensor, model) for name, tensor in tensors.items()}
    rounded = tuple(name for name, tensor in fitted.items() if tensor.info.dtype != tensors[name].info.dtype)
    names = None if model is None else frozenset(model)
    return Source(tensors=fitted, names=names, merged=tuple(merged), rounded=rounded)


def _fit(name: str, tensor: RankTensor, model: Mapping[str, RankTensor] | None) -> RankTensor:
    if model is None:
        return tensor
    if (expected := model.get(name)) is None:
        raise TransferError(f"tensor {name!r} is not in the checkpoint of {len(model)} tensors: leave it out")
    dtype, shape = tensor.info.dtype, tensor.info.shape
    if shape != expected.info.shape:
        raise TransferError(f"tensor {name!r} has shape {list(shape)}, expected {list(expected.info.shape)}")
    if dtype != expected.info.dtype and not {dtype, expected.info.dtype} <= _ROUNDED:
        raise TransferError(f"tensor {name!r} is {dtype}, and cannot be rounded to {expected.info.dtype}")
    return RankTensor(expected.info, tensor.boxes)


def _one_name(tensors: Mapping[str, RankTensor], model: Mapping[str, RankTensor]) -> dict[str, RankTensor]:
    kept = dict(tensors)
    for head in [name for name in tensors if name.endswith(HEAD) and name not in model]:
        tensor = kept.pop(head)
        names = [name for name in model if name.endswith(EMBEDDING) and model[name].info.shape == tensor.info.shape]
        if not names:
            raise TransferError(f"tensor {head!r} is not in the checkpoint, and no embedding there has its shape")
        embedding = kept.setdefault(names[0], tensor)
        for region in tensor.boxes.keys() & embedding.boxes.keys():
            left, right = elements(tensor.boxes[region]), elements(embedding.boxes[region])
            if left.dtype != right.dtype or not torch.equal(integers(left), integers(right)):
                raise TransferError(f"{head!r} differs from {names[0]!r} at {region}: tie them, as the checkpoint does")
    return kept
