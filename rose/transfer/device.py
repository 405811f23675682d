"""Moves only changed elements between an accelerator and the host. Parameters keep their addresses, for CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rose.transfer.codec.bits import dtype_name, from_bits, integers, to_bits
from rose.transfer.codec.header import Bits
from rose.transfer.errors import TransferError

_BLOCK_ELEMENTS = 1 << 24  # Elements compared or written at once, which bounds the memory taken beside the tensor.


@dataclass(frozen=True, slots=True)
class Patch:
    positions: torch.Tensor | None  # Ascending, in C order. None: all elements; `values` then has the tensor's shape.
    values: torch.Tensor  # In the published type.

    @classmethod
    def between(cls, old: torch.Tensor, new: torch.Tensor) -> Patch:
        """Return the elements that differ between tensors of one shape and type, or all of `new` if that is smaller."""
        before, after = integers(old), integers(new)
        place = torch.int32 if after.numel() < 1 << 31 else torch.int64
        positions, values = [torch.empty(0, dtype=place)], [after[:0].cpu()]
        left = new.nbytes
        for start in range(0, after.numel(), _BLOCK_ELEMENTS):
            block = after[start : start + _BLOCK_ELEMENTS]
            changed = torch.nonzero(before[start : start + _BLOCK_ELEMENTS] != block).reshape(-1)
            left -= changed.numel() * (place.itemsize + new.element_size())
            if left <= 0:
                return cls(None, new.detach().cpu())
            positions.append((changed + start).to(place).cpu())
            values.append(block[changed].cpu())
        return cls(torch.cat(positions), torch.cat(values).view(new.dtype))

    def write(self, tensor: torch.Tensor) -> None:
        """Write into `tensor`, which may have a wider type. Raises TransferError if `tensor` is not contiguous."""
        if self.positions is None:
            tensor.detach().copy_(self.values, non_blocking=True)
            return
        if not tensor.is_contiguous():
            raise TransferError(f"a tensor of strides {tensor.stride()} cannot be patched, expected a contiguous one")
        flat = integers(tensor)
        parts = (torch.split(whole, _BLOCK_ELEMENTS) for whole in (self.positions, self.values))
        for positions, values in zip(*parts, strict=True):
            places = positions.to(tensor.device, non_blocking=True).long()
            flat.index_copy_(0, places, integers(values.to(tensor.device, non_blocking=True).to(tensor.dtype)))


@dataclass(frozen=True, slots=True)
class Fetched:
    bits: Bits  # In host memory: the tensor's own memory if it is contiguous there, else a copy.
    on_device: torch.Tensor | None  # The next version is compared with it. None for a tensor in host memory.


def fetch(name: str, tensor: torch.Tensor, last: Fetched | None = None) -> Fetched:
    """Return the tensor's bits in host memory. From an accelerator, only what changed since `last` is copied."""
    on_device = tensor.detach().clone(memory_format=torch.contiguous_format) if tensor.is_cuda else None
    now = tensor if on_device is None else on_device
    if last is None or last.on_device is None or last.on_device.device != tensor.device:
        return Fetched(to_bits(name, now), on_device)
    bits = last.bits.copy()
    Patch.between(last.on_device, now).write(from_bits(bits, dtype_name(name, tensor)))
    return Fetched(bits, on_device)
