"""Turns on a shared device: long work is done in portions, each in a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Is entered before each portion of work and left after it, perhaps in several threads at once. To enter it may take
#: long, while others need the device, or raise what ends the work.
Turn = Callable[[], AbstractContextManager[object]]
at_once: Turn = nullcontext  # Where nobody else needs the device.
PORTION_BYTES = 4 << 20  # Copied or hashed at most in one turn, unless rows are longer. It takes about a millisecond.


def portions(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the same rows of tensors of one shape, in C order, up to PORTION_BYTES at a time."""
    flat = [tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach() for tensor in tensors]
    rows = len(flat[0])
    count = max(1, PORTION_BYTES * rows // max(1, *(tensor.nbytes for tensor in flat)))
    for start in range(0, rows, count):
        yield tuple(tensor[start : start + count] for tensor in flat)
