"""Numba's compiler. Functions that call each other lie in one file, because numba caches each file separately."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types

Array = npt.NDArray[Any]
Int = Any  # Python's or NumPy's integers.
_F = TypeVar("_F", bound=Callable[..., Any])
_NO = ir.Constant(ir.IntType(1), 0)  # Zero has a defined result.


def jit(function: _F) -> _F:
    """Compile at the first call, and run without Python's global lock. The machine code is cached beside the source."""
    return cast(_F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast("Callable[..., Any]", extending.intrinsic(function))


@instruction
def ones(_: Any, word: Any) -> Any:
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@instruction
def zeros_below(_: Any, word: Any) -> Any:
    """Return the number of bits below the lowest set bit, or 64 if no bit is set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.cttz(args[0], _NO)


@instruction
def zeros_above(_: Any, word: Any) -> Any:
    """Return the number of bits above the highest set bit, or 64 if no bit is set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctlz(args[0], _NO)


@instruction
def difference_mask(_: Any, base: Any, new: Any, at: Any) -> Any:
    """Return 64 bits for the 64 elements from `at` on. A bit is set if its element differs. Bounds are not checked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = []
        for kind, array in zip(signature.args, args[:2], strict=False):
            many = ir.VectorType(context.get_data_type(kind.dtype), 64)
            place = builder.gep(context.make_array(kind)(context, builder, array).data, [args[2]])
            loaded.append(builder.load(builder.bitcast(place, many.as_pointer()), align=kind.dtype.bitwidth // 8))
        return builder.bitcast(builder.icmp_unsigned("!=", *loaded), ir.IntType(64))

    return types.uint64(base, new, types.uintp), code
