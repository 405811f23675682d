"""Turns on a shared device, not the turns of a run: each portion of long work waits for its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: The context of each portion of work. Entering it may wait for the device, or may raise an error that ends the work.
Turn = Callable[[], AbstractContextManager[object]]
at_once: Turn = nullcontext  # For a device that is not shared.
PORTION_BYTES = 4 << 20  # One turn copies or hashes at most this, in about 1 ms, unless a row is longer.


def portions(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the same rows of several tensors of one shape, in C order. Each portion has at most PORTION_BYTES."""
    flat = [tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach() for tensor in tensors]
    rows = len(flat[0])
    count = max(1, PORTION_BYTES * rows // max(1, *(tensor.nbytes for tensor in flat)))
    for start in range(0, rows, count):
        yield tuple(tensor[start : start + count] for tensor in flat)
