"""Torch tensors as the integer bit patterns the codec works on, and their hashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash

from rose.runtime.transfer.codec import Bits
from rose.runtime.transfer.errors import TransferError

#: Floating types that can be sent: their name in manifests, and the integers of the same width.
_TORCH_INTEGERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
_NUMPY: dict[str, np.dtype[np.unsignedinteger[Any]]] = {
    "bfloat16": np.dtype(np.uint16),
    "float16": np.dtype(np.uint16),
    "float32": np.dtype(np.uint32),
}
_BY_NAME = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(name: str, tensor: torch.Tensor) -> str:
    """`bfloat16`, `float16` or `float32`. Raises TransferError naming the tensor for any other dtype."""
    if tensor.dtype not in _NAMES:
        raise TransferError(f"tensor {name!r} is {tensor.dtype}, expected one of {', '.join(_NAMES.values())}")
    return _NAMES[tensor.dtype]


def bits_dtype(dtype: str) -> np.dtype[np.unsignedinteger[Any]]:
    """The unsigned integers that hold a dtype of a manifest."""
    return _NUMPY[dtype]


def torch_dtype(dtype: str) -> torch.dtype:
    """The torch type of a dtype of a manifest."""
    return _BY_NAME[dtype]


def is_dtype(dtype: str) -> bool:
    """Whether a manifest may name this dtype."""
    return dtype in _NUMPY


def to_bits(name: str, tensor: torch.Tensor) -> Bits:
    """The tensor's bit patterns, same shape; shares its memory if it is contiguous on the CPU, else a copy."""
    expected = _NUMPY[dtype_name(name, tensor)]
    host = tensor.detach().cpu().contiguous()
    # A view to another dtype of the same width is not defined for 0-d tensors in all torch versions; flatten first.
    integers: Bits = host.reshape(-1).view(_TORCH_INTEGERS[tensor.dtype]).numpy().view(expected)
    return integers.reshape(tuple(tensor.shape))


def from_bits(bits: Bits, dtype: str) -> torch.Tensor:
    """A CPU tensor over the memory of `bits`."""
    signed = bits.reshape(-1).view(np.int16 if bits.itemsize == 2 else np.int32)
    return torch.from_numpy(signed).view(_BY_NAME[dtype]).reshape(bits.shape)


def digest(bits: Bits) -> str:
    """XXH3-128 of the array's memory, in hex: it finds accidents at memory speed, and is not a signature."""
    return xxhash.xxh3_128_hexdigest(bits.reshape(-1).data)
