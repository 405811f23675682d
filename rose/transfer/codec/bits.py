"""Converts torch tensors to the integer bit patterns that the codec uses, and hashes them."""

from typing import cast

import numpy as np
import torch
import xxhash

from rose.transfer.codec.dtypes import NAMES, bits_dtype
from rose.transfer.codec.header import Bits
from rose.transfer.errors import TransferError
from rose.transfer.turns import PORTION_BYTES, Turn, at_once

_TORCH = {name: cast(torch.dtype, getattr(torch, name)) for name in NAMES}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}
_TORCH_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def dtype_name(name: str, tensor: torch.Tensor) -> str:
    """Return the dtype's name in manifests, such as `bfloat16`. Raises TransferError."""
    if tensor.dtype not in _NAMES:
        kinds = ", ".join(_NAMES.values())
        raise TransferError(f"tensor {name!r} is {tensor.dtype}, expected one of {kinds}: leave it out")
    return _NAMES[tensor.dtype]


def torch_dtype(dtype: str) -> torch.dtype:
    return _TORCH[dtype]


def integers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in C order as signed integers: a view of a contiguous tensor, a copy of any other."""
    # A view to another dtype of the same width is not defined for 0-d tensors in all torch versions; flatten first.
    return tensor.detach().reshape(-1).view(_TORCH_INTEGERS[tensor.element_size()])


def to_bits(name: str, tensor: torch.Tensor) -> Bits:
    """Return the bit patterns: a view of a contiguous tensor on the CPU, a copy of any other. Raises TransferError."""
    expected = bits_dtype(dtype_name(name, tensor))
    host = integers(tensor)
    if host.is_cuda:
        # Pinned memory is several times faster; torch keeps it for the next tensor.
        host = torch.empty(host.shape, dtype=host.dtype, pin_memory=True).copy_(host)
    bits: Bits = host.cpu().numpy().view(expected)
    return bits.reshape(tuple(tensor.shape))


def from_bits(bits: Bits, dtype: str) -> torch.Tensor:
    signed = bits.reshape(-1).view(f"i{bits.itemsize}")
    return torch.from_numpy(signed).view(torch_dtype(dtype)).reshape(bits.shape)


def digest(bits: Bits, turn: Turn = at_once) -> str:
    """Return the XXH3-128 hash of the array's memory, in hex. The hash detects accidents, but not forgery."""
    memory = bits.reshape(-1).view(np.uint8)
    hasher = xxhash.xxh3_128()
    for start in range(0, memory.size, PORTION_BYTES):
        with turn():
            hasher.update(memory[start : start + PORTION_BYTES].data)
    return hasher.hexdigest()
