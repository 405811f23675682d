"""Torch tensors as the integer bit patterns the codec works on, and their hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from rose.runtime.transfer.codec import Bits
from rose.runtime.transfer.errors import TransferError


@dataclass(frozen=True, slots=True)
class _Type:
    torch: torch.dtype
    numpy: np.dtype[np.unsignedinteger[Any]]
    mantissa_bits: int


#: Floating types that can be sent, by their name in manifests.
_TYPES = {
    "bfloat16": _Type(torch.bfloat16, np.dtype(np.uint16), 7),
    "float16": _Type(torch.float16, np.dtype(np.uint16), 10),
    "float32": _Type(torch.float32, np.dtype(np.uint32), 23),
    "float8_e4m3fn": _Type(torch.float8_e4m3fn, np.dtype(np.uint8), 3),
    "float8_e5m2": _Type(torch.float8_e5m2, np.dtype(np.uint8), 2),
}
_NAMES = {of.torch: name for name, of in _TYPES.items()}
_TORCH_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_SIGNED: dict[int, npt.DTypeLike] = {1: np.int8, 2: np.int16, 4: np.int32}


def dtype_name(name: str, tensor: torch.Tensor) -> str:
    """Its name in manifests, such as `bfloat16`. Raises TransferError naming the tensor for a dtype without one."""
    if tensor.dtype not in _NAMES:
        raise TransferError(f"tensor {name!r} is {tensor.dtype}, expected one of {', '.join(_NAMES.values())}")
    return _NAMES[tensor.dtype]


def bits_dtype(dtype: str) -> np.dtype[np.unsignedinteger[Any]]:
    """The unsigned integers that hold a dtype of a manifest."""
    return _TYPES[dtype].numpy


def torch_dtype(dtype: str) -> torch.dtype:
    """The torch type of a dtype of a manifest."""
    return _TYPES[dtype].torch


def is_dtype(dtype: str) -> bool:
    """Whether a manifest may name this dtype."""
    return dtype in _TYPES


def mantissa_bits(dtype: str) -> int:
    """Bits of the mantissa of a dtype of a manifest."""
    return _TYPES[dtype].mantissa_bits


def to_bits(name: str, tensor: torch.Tensor) -> Bits:
    """The tensor's bit patterns, same shape; shares its memory if it is contiguous on the CPU, else a copy."""
    expected = bits_dtype(dtype_name(name, tensor))
    host = tensor.detach().cpu().contiguous()
    # A view to another dtype of the same width is not defined for 0-d tensors in all torch versions; flatten first.
    integers: Bits = host.reshape(-1).view(_TORCH_INTEGERS[expected.itemsize]).numpy().view(expected)
    return integers.reshape(tuple(tensor.shape))


def from_bits(bits: Bits, dtype: str) -> torch.Tensor:
    """A CPU tensor over the memory of `bits`."""
    signed = bits.reshape(-1).view(_SIGNED[bits.itemsize])
    return torch.from_numpy(signed).view(torch_dtype(dtype)).reshape(bits.shape)


def digest(bits: Bits) -> str:
    """XXH3-128 of the array's memory, in hex: it finds accidents at memory speed, and is not a signature."""
    return xxhash.xxh3_128_hexdigest(bits.reshape(-1).data)
