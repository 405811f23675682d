"""Numba's compiler with the settings of the codec. Keep compiled functions that call each other in one file: numba
caches each file separately, and does not see changes in another file."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types

Array = npt.NDArray[Any]
Int = Any  # Python's or NumPy's integers.
_F = TypeVar("_F", bound=Callable[..., Any])


def jit(function: _F) -> _F:
    """Return a function that is compiled on its first use, for any type of array. It runs without Python's lock. The
    compiled code is cached beside the source."""
    return cast(_F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast("Callable[..., Any]", extending.intrinsic(function))


@instruction
def ones(_: Any, word: Any) -> Any:
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@instruction
def zeros_below(_: Any, word: Any) -> Any:
    """Return the number of bits below the lowest set bit, or 64 if no bit is set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.cttz(
        args[0], ir.Constant(ir.IntType(1), 0)
    )


@instruction
def zeros_above(_: Any, word: Any) -> Any:
    """Return the number of bits above the highest set bit, or 64 if no bit is set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctlz(
        args[0], ir.Constant(ir.IntType(1), 0)
    )
