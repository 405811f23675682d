"""Arrays of float bit patterns to encode, and what ULP order is by its definition."""

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rose.transfer.codec.header import Bits, Encoding

#: +0, -0, smallest subnormals, infinities, quiet and signalling NaNs with payloads of both signs, extremes.
SPECIAL = {
    np.uint8: [0x00, 0x80, 0x01, 0x81, 0x7F, 0xFF, 0x7C, 0xFC, 0x7D],
    np.uint16: [0x0000, 0x8000, 0x0001, 0x8001, 0x7F80, 0xFF80, 0x7FC1, 0xFFC1, 0x7F81, 0xFFFF, 0x7C00, 0x7E01],
    np.uint32: [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF],
}
DTYPES = st.sampled_from([np.uint8, np.uint16, np.uint32])
ENCODINGS: list[Encoding] = ["fast", "small", "planes"]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Bits, Bits]:
    """A base and a new array: unrelated bits, no change, or a few ULP-like, arbitrary and special changes."""
    dtype = draw(DTYPES)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    top = np.iinfo(dtype).max
    base = rng.integers(0, top, shape, dtype=dtype, endpoint=True)
    base = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL[dtype], shape), base).astype(dtype)
    density = draw(st.sampled_from([0.0, 0.002, 0.03, 0.3, 1.0]))
    kind = draw(st.sampled_from(["ulp", "any", "special"]))
    if kind == "ulp":
        other = base + rng.integers(-3, 4, shape).astype(dtype)
    elif kind == "any":
        other = rng.integers(0, top, shape, dtype=dtype, endpoint=True)
    else:
        other = rng.choice(SPECIAL[dtype], shape).astype(dtype)
    new = np.where(rng.random(shape) < density, other, base).astype(dtype)
    return np.asarray(base), np.asarray(new)


def adam_like(size: int, step: float) -> tuple[Bits, Bits]:
    """bf16 before and after a step of about the same size for every weight."""
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal(size) * 0.02).astype(np.float32)
    after = weights + (rng.standard_normal(size) * step).astype(np.float32)
    base, new = (((w.view(np.uint32) + 0x8000) >> 16).astype(np.uint16) for w in (weights, after))
    return base, new


def ulp_order(bits: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """-0 just below +0, and all patterns in the order of what they mean."""
    half = 1 << (8 * bits.itemsize - 1)
    wide = bits.astype(np.int64)
    return np.where(wide < half, wide, half - 1 - wide)
