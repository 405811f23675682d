"""Gives a trainer's tensors the names and types of the fleet's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rose.runtime.transfer.codec.bits import integers
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.cuts import elements
from rose.runtime.transfer.sources import adapter
from rose.runtime.transfer.sources.adapter import Adapter
from rose.runtime.transfer.sources.checkpoint import EMBEDDING, HEAD, Checkpoint
from rose.runtime.transfer.sources.delta import Delta
from rose.runtime.transfer.sources.given import Given, given_tensors

Weights = Mapping[str, torch.Tensor] | Path
Newest = Callable[[], tuple[int, Mapping[str, torch.Tensor]]]  # The version published last, and its tensors.
_ROUNDED = {"float32", "bfloat16", "float16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """This rank's tensors under their published names and in their published types. `wanted` are all published names,
    None if nothing says them; `merged` those that an adapter changed; `rounded` those whose type was another."""

    tensors: Mapping[str, Given]
    wanted: frozenset[str] | None
    merged: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()


def _nothing() -> tuple[int, Mapping[str, torch.Tensor]]:
    raise TransferError("a delta needs a published version: publish a folder of the whole weights first")


def read(weights: Weights, checkpoint: Checkpoint | None, newest: Newest = _nothing) -> Source:
    """Return what is published of a state dict, or of the folder of a checkpoint, an adapter or a delta, which changes
    the `newest` version. It has the names and types of `checkpoint`; without it, those of the folder or of the state
    dict. Raises TransferError naming the tensor."""
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
        tensors = given_tensors(weights)
    wanted = None
    if checkpoint is not None:
        wanted = checkpoint.tensors
        if checkpoint.tied:
            tensors = _one_name(tensors, wanted)
    fitted = {name: _fit(name, given, wanted) for name, given in tensors.items()}
    rounded = tuple(name for name, given in fitted.items() if given.info.dtype != tensors[name].info.dtype)
    return Source(
        tensors=fitted, wanted=None if wanted is None else frozenset(wanted), merged=tuple(merged), rounded=rounded
    )


def _fit(name: str, given: Given, wanted: Mapping[str, Given] | None) -> Given:
    if wanted is None:
        return given
    if (expected := wanted.get(name)) is None:
        raise TransferError(f"tensor {name!r} is not in the checkpoint of {len(wanted)} tensors: leave it out")
    dtype, shape = given.info.dtype, given.info.shape
    if shape != expected.info.shape:
        raise TransferError(f"tensor {name!r} has shape {list(shape)}, expected {list(expected.info.shape)}")
    if dtype != expected.info.dtype and not {dtype, expected.info.dtype} <= _ROUNDED:
        raise TransferError(f"tensor {name!r} is {dtype}, and cannot be rounded to {expected.info.dtype}")
    return Given(expected.info, given.boxes)


def _one_name(tensors: Mapping[str, Given], wanted: Mapping[str, Given]) -> dict[str, Given]:
    """Return the tensors with the output head under the name of the embedding, whose elements it must have."""
    kept = dict(tensors)
    for head in [name for name in tensors if name.endswith(HEAD) and name not in wanted]:
        given = kept.pop(head)
        names = [name for name in wanted if name.endswith(EMBEDDING) and wanted[name].info.shape == given.info.shape]
        if not names:
            raise TransferError(f"tensor {head!r} is not in the checkpoint, and no embedding there has its shape")
        embedding = kept.setdefault(names[0], given)
        for region in given.boxes.keys() & embedding.boxes.keys():
            if not _same_bits(elements(given.boxes[region]), elements(embedding.boxes[region])):
                raise TransferError(
                    f"tensor {head!r} differs from {names[0]!r} at {region}, which the checkpoint has as one: tie them"
                )
    return kept


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(integers(left), integers(right))
