"""Turns on a shared device: long work is done in portions, each in a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Context of each portion of work. Entering may wait for the device, or raise an error that ends the work.
Turn = Callable[[], AbstractContextManager[object]]
at_once: Turn = nullcontext  # For a device that is not shared.
PORTION_BYTES = 4 << 20  # Copied or hashed at most in one turn, about a millisecond, unless rows are longer.


def portions(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the same rows of tensors of one shape, in C order, up to PORTION_BYTES at a time."""
    flat = [tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach() for tensor in tensors]
    rows = len(flat[0])
    count = max(1, PORTION_BYTES * rows // max(1, *(tensor.nbytes for tensor in flat)))
    for start in range(0, rows, count):
        yield tuple(tensor[start : start + count] for tensor in flat)
