"""Simulated bf16 weights, and versions of them after steps of Adam."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from rose.transfer.codec.header import Bits

Masters = npt.NDArray[np.float32]
SCALE = 0.02
_SAMPLE = 1 << 20


def bf16(masters: Masters) -> Bits:
    bits = masters.view(np.uint32)
    rounded: Bits = (bits + (bits >> 16 & 1) + np.uint32(0x7FFF) >> 16).astype(np.uint16)
    return rounded


def versions(elements: int, share: float, seed: int = 0) -> Iterator[Bits]:
    """Yield versions of an array, each different in about `share` of the elements."""
    rng = np.random.default_rng([seed, elements])
    masters = _normal(rng, elements) * np.float32(SCALE)
    rate = np.float32(_rate(share))
    while True:
        yield bf16(masters)
        masters += _normal(rng, elements) * rate


def pair(elements: int, share: float, seed: int = 0) -> tuple[Bits, Bits]:
    made = versions(elements, share, seed)
    return next(made), next(made)


@cache
def _rate(share: float) -> float:
    """Return the standard deviation of a step that changes this share of the elements."""
    rng = np.random.default_rng(1)
    masters = _normal(rng, _SAMPLE) * np.float32(SCALE)
    base, step = bf16(masters), _normal(rng, _SAMPLE)
    low, high = 1e-9, 1.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        changed = float(np.mean(bf16(masters + step * np.float32(middle)) != base))
        low, high = (middle, high) if changed < share else (low, middle)
    return low


def _normal(rng: np.random.Generator, elements: int) -> Masters:
    return rng.standard_normal(elements, dtype=np.float32)
