"""The tensors of one trainer rank. A tensor is whole, or it is the rank's shard of a DTensor."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rose.transfer.codec.bits import dtype_name
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.package.cuts import Elements, aliases
from rose.transfer.package.manifest import TensorInfo


@dataclass(frozen=True, slots=True)
class RankTensor:
    """A tensor, and this rank's elements of it. A `tied` tensor shares an earlier tensor's memory."""

    info: TensorInfo
    boxes: Mapping[Region, Elements]
    tied: bool = False

    @classmethod
    def whole(cls, info: TensorInfo, elements: Elements) -> RankTensor:
        return cls(info, {Region.whole(info.shape): elements})


def rank_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, RankTensor]:
    """Return the tensors of a state dict. Raises TransferError unless they are plain tensors or plain DTensors."""
    # A trainer that has DTensors has imported this, which takes a second.
    loaded = sys.modules.get("torch.distributed.tensor")
    sharded: Any = () if loaded is None else loaded.DTensor
    local: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        plain: Any = tensor
        if isinstance(plain, torch.Tensor):
            plain = plain.detach()
        if isinstance(plain, sharded):
            if any(placement.is_partial() for placement in plain.placements):
                raise TransferError(f"tensor {name!r} is a DTensor of partial sums: redistribute it first")
            plain = plain.to_local()
        if type(plain) is not torch.Tensor or plain.layout is not torch.strided or plain.is_meta:
            place = getattr(plain, "layout", "no layout"), getattr(plain, "device", "no device")
            kind = f"{type(plain).__name__} ({', '.join(map(str, place))})"
            raise TransferError(
                f"tensor {name!r} is a {kind}, expected a torch.Tensor or a DTensor: leave it out, or publish a folder "
                "with the whole weights"
            )
        local[name] = plain
    # Other threads read the tensors. The streams of those threads do not wait for the caller's stream.
    for device in {plain.device for plain in local.values() if plain.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    tied = aliases(local)
    result = {}
    for name, plain in local.items():
        tensor = tensors[name]
        info = TensorInfo(name, dtype_name(name, plain), tuple(tensor.shape))
        boxes = _boxes(name, tensor, plain) if isinstance(tensor, sharded) else {Region.whole(info.shape): plain}
        result[name] = RankTensor(info, boxes, name in tied)
    return result


def _boxes(name: str, tensor: Any, local: torch.Tensor) -> dict[Region, Elements]:
    """Return this rank's boxes of a DTensor. There are several if two mesh dimensions split one axis unevenly."""
    places = torch.nonzero(tensor.device_mesh.mesh == torch.distributed.get_rank()).tolist()
    if not places:
        return {}
    indices = [torch.arange(length) for length in tensor.shape]
    for dimension, (placement, coordinate) in enumerate(zip(tensor.placements, places[0], strict=True)):
        if not placement.is_replicate():
            axis, length = placement.dim, tensor.device_mesh.size(dimension)
            along = indices[axis].reshape([-1 if other == axis else 1 for other in range(len(indices))])
            shards, _ = placement._split_tensor(along, length, with_padding=False, contiguous=False)
            indices[axis] = shards[coordinate].reshape(-1)
    expected = [len(index) for index in indices]
    if list(local.shape) != expected and (local.numel() or all(expected)):  # A tensor without elements has many shapes.
        raise TransferError(f"tensor {name!r} of {list(tensor.shape)} is {list(local.shape)} here, expected {expected}")
    boxes: dict[Region, Elements] = {}
    for runs in itertools.product(*map(_runs, indices)):
        region = Region(tuple(run[0] for run in runs), tuple(run[0] + run[2] for run in runs))
        boxes[region] = local[tuple(slice(start, start + length) for _, start, length in runs)]
    return boxes


def _runs(index: torch.Tensor) -> list[tuple[int, int, int]]:
    ends = [*(torch.nonzero(index.diff() != 1).reshape(-1) + 1).tolist(), len(index)]
    starts = [0, *ends[:-1]]
    return [(int(index[start]), start, end - start) for start, end in zip(starts, ends, strict=True) if end > start]
