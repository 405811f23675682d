"""What the codec compiles with: numba as it is used here, and instructions that Python has no name for.

Functions that call each other compiled stay in one file, for numba's cache of a file does not see changes in another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types

Array = npt.NDArray[Any]
#: Python's integers and NumPy's: compiled, they are the same.
Int = Any
_F = TypeVar("_F", bound=Callable[..., Any])


def jit(function: _F) -> _F:
    """Compile on first use, for any type of array, and keep it beside the source; without Python's lock."""
    return cast(_F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of `function`'s arguments without the first, what it says in LLVM's language; for compiled functions only."""
    return cast("Callable[..., Any]", extending.intrinsic(function))


@instruction
def ones(_: Any, word: Any) -> Any:
    """Return how many bits are set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@instruction
def zeros_below(_: Any, word: Any) -> Any:
    """Return how many bits lie below the lowest that is set; 64 if none is."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.cttz(
        args[0], ir.Constant(ir.IntType(1), 0)
    )


@instruction
def zeros_above(_: Any, word: Any) -> Any:
    """Return how many bits lie above the highest that is set; 64 if none is."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctlz(
        args[0], ir.Constant(ir.IntType(1), 0)
    )
