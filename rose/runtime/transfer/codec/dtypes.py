"""The floating types that can be sent, by their names in manifests; nothing here knows about torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class _Type:
    bits: np.dtype[np.unsignedinteger[Any]]
    mantissa_bits: int


_TYPES = {
    "bfloat16": _Type(np.dtype(np.uint16), 7),
    "float16": _Type(np.dtype(np.uint16), 10),
    "float32": _Type(np.dtype(np.uint32), 23),
    "float8_e4m3fn": _Type(np.dtype(np.uint8), 3),
    "float8_e5m2": _Type(np.dtype(np.uint8), 2),
}
NAMES = tuple(_TYPES)


def is_dtype(dtype: str) -> bool:
    """Whether a manifest may name this dtype."""
    return dtype in _TYPES


def bits_dtype(dtype: str) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the unsigned integers that hold a dtype of a manifest."""
    return _TYPES[dtype].bits


def mantissa_bits(dtype: str) -> int:
    """Bits of the mantissa of a dtype of a manifest."""
    return _TYPES[dtype].mantissa_bits
