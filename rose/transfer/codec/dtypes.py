"""The floating types that can be sent, by the names that manifests use."""

from typing import Any

import numpy as np

_Bits = np.dtype[np.unsignedinteger[Any]]
_TYPES: dict[str, tuple[_Bits, int]] = {  # The unsigned integer for each type, and the bits of its mantissa.
    "bfloat16": (np.dtype(np.uint16), 7),
    "float16": (np.dtype(np.uint16), 10),
    "float32": (np.dtype(np.uint32), 23),
    "float8_e4m3fn": (np.dtype(np.uint8), 3),
    "float8_e5m2": (np.dtype(np.uint8), 2),
}
NAMES = tuple(_TYPES)


def bits_dtype(dtype: str) -> _Bits:
    return _TYPES[dtype][0]


def mantissa_bits(dtype: str) -> int:
    return _TYPES[dtype][1]
