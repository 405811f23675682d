"""Host memory that is carved into tensors, and carved anew for the next version.

Memory that an accelerator reads and writes directly is pinned, which takes longer than to fill it, and so does touching
other memory for the first time: both are done once.
"""

from __future__ import annotations

import threading

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
        # Torch's own cache of pinned memory would round up to a power of two anyway.
        segment_bytes = max(self._segment_bytes, 1 << (size_bytes - 1).bit_length())
        self._segments.append(torch.empty(segment_bytes, dtype=torch.uint8, pin_memory=self._pinned))
        self._taken_bytes.append(0)
        return len(self._segments) - 1
