"""Host memory that is used anew: a slab for what is wanted all at once, buffers for what is given back one by one.

Memory that an accelerator reads and writes directly is pinned, which takes longer than to fill it, and so does touching
other memory for the first time: both are done once.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np
import torch

#: Where tensors begin: the widest element, and what one core's cache reads at once.
_ALIGNED_BYTES = 64


class Slab:
    """Memory in segments of a power of two, at least `segment_bytes`; it grows when it is full and is never given back.

    `pinned` is for an accelerator's memory bus, and needs CUDA. Several threads may take from it.
    """

    def __init__(self, *, pinned: bool, segment_bytes: int) -> None:
        self._pinned = pinned
        self._segment_bytes = segment_bytes
        self._segments: list[torch.Tensor] = []
        self._taken_bytes: list[int] = []
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """What it takes of the host's memory."""
        return sum(segment.nbytes for segment in self._segments)

    def take(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of one axis. What it holds means nothing; it is the caller's until `clear`."""
        size_bytes = elements * dtype.itemsize
        with self._lock:
            index = self._room_for(size_bytes)
            start = self._taken_bytes[index]
            self._taken_bytes[index] += -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        return self._segments[index][start : start + size_bytes].view(dtype)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a contiguous tensor in host memory."""
        kept = self.take(tensor.numel(), tensor.dtype)
        # Not torch's copy, which is split over threads that wait for each other.
        memory = tensor.detach().reshape(-1).view(torch.uint8)
        np.copyto(kept.view(torch.uint8).numpy(), memory.numpy())
        return kept.reshape(tensor.shape)

    def clear(self) -> None:
        """Take all of it back: what was taken is written over from now on."""
        with self._lock:
            self._taken_bytes = [0] * len(self._segments)

    def _room_for(self, size_bytes: int) -> int:
        for index, taken in enumerate(self._taken_bytes):
            if size_bytes <= self._segments[index].nbytes - taken:
                return index
        self._segments.append(_memory(max(self._segment_bytes, size_bytes), self._pinned))
        self._taken_bytes.append(0)
        return len(self._segments) - 1


class Buffers:
    """Memory of any power of two, lent to one thread at a time and kept for the next.

    There are as many of one size as were ever lent at once: none is lent for less, or all would grow to the largest.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._idle: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self._lock = threading.Lock()
        #: What all take of the host's memory, those that are lent too.
        self.nbytes = 0

    def lend(self, size_bytes: int) -> torch.Tensor:
        """Bytes, at least so many. What they hold means nothing."""
        with self._lock:
            idle = self._idle[_rounded(size_bytes)]
            if idle:
                return idle.pop()
            self.nbytes += _rounded(size_bytes)
        return _memory(size_bytes, self._pinned)

    def give_back(self, memory: torch.Tensor) -> None:
        """What was lent is written over from now on."""
        with self._lock:
            self._idle[memory.nbytes].append(memory)


def _rounded(size_bytes: int) -> int:
    """Torch's own cache of pinned memory rounds up to a power of two as well."""
    return 1 << max(size_bytes - 1, 0).bit_length()


def _memory(size_bytes: int, pinned: bool) -> torch.Tensor:
    return torch.empty(_rounded(size_bytes), dtype=torch.uint8, pin_memory=pinned)
