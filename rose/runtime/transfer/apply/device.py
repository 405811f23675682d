"""Weights that live on an accelerator: what changed goes over the bus, and is written where the weights lie. All of it
is torch, and the same on every device.

A trainer's tensor is compared with its last version on the accelerator. The host, which holds that version's bits, is
sent the changed elements, and the codec finds both versions in host memory, as it does on a host without accelerators:
every encoding is open to it. An engine's tensor is read and decoded on the host beside the running engine (`aside`). In
the pause it is sent the changed elements only. They are written in place: captured graphs hold the parameter's address.
Until then they wait in host memory, and take none of the engine's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rose.runtime.transfer.codec.bits import dtype_name, from_bits, integers, to_bits
from rose.runtime.transfer.codec.header import Bits
from rose.runtime.transfer.errors import TransferError

_BLOCK_ELEMENTS = 1 << 24  # Elements compared or written at once, which bounds the memory taken beside the tensor.


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of a tensor: new values for some of its elements, or for all. In host memory."""

    positions: torch.Tensor | None  # Which elements in C order, rising; None: all, and `values` has the tensor's shape.
    values: torch.Tensor  # In the published type.

    @classmethod
    def between(cls, old: torch.Tensor, new: torch.Tensor) -> Patch:
        """Return what changes `old` into `new`, bit for bit: two tensors of one shape and type on one device. It is all
        of `new` where that is not longer than the changed elements with their places."""
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
        """Write it into `tensor`, in place; on an accelerator, wait for that before the patch is given up. `tensor` may
        be of a wider type: it then gets the same numbers. Raises TransferError if only some elements are to be written
        and the tensor is not contiguous: its elements cannot be counted through."""
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
    bits: Bits  # In host memory: the tensor's own if it is contiguous there, else a copy.
    on_device: torch.Tensor | None  # To compare the next version with; None for a tensor in host memory.


def fetch(name: str, tensor: torch.Tensor, last: Fetched | None = None) -> Fetched:
    """Return a tensor's bits in host memory. Of one on an accelerator, only what changed since `last` is copied there.
    What stays on the accelerator takes as much of its memory as the tensor does. All is copied without `last`, and
    where the tensor lay elsewhere then. Raises TransferError for a dtype without a name."""
    on_device = tensor.detach().clone(memory_format=torch.contiguous_format) if tensor.is_cuda else None
    if last is None or last.on_device is None or last.on_device.device != tensor.device:
        return Fetched(to_bits(name, tensor if on_device is None else on_device), on_device)
    bits = last.bits.copy()
    Patch.between(last.on_device, tensor if on_device is None else on_device).write(
        from_bits(bits, dtype_name(name, tensor))
    )
    return Fetched(bits, on_device)
