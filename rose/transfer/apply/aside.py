"""Reads and compares an engine's weights while the engine works. On a GPU, this work has its own CUDA stream."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from rose.transfer.codec import differences
from rose.transfer.codec.bits import dtype_name, from_bits, integers, to_bits
from rose.transfer.codec.header import Bits
from rose.transfer.device import Patch
from rose.transfer.turns import Turn, at_once, portions

FINGERPRINTED = ("cuda",)  # Devices whose weights are fingerprinted; on the host hashing is faster.


class Aside:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.fingerprinted = device.type in FINGERPRINTED
        self._pinned = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self._pinned else None  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def entered(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def read(self, name: str, tensor: torch.Tensor, turn: Turn = at_once) -> Bits:
        """Return the tensor's bits in host memory. Do not change the bits. Each portion is copied in a `turn()`."""
        dtype_name(name, tensor)
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            return to_bits(name, tensor)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pinned)
        for target, source in portions(host, tensor):
            with turn():
                target.copy_(source)
        return to_bits(name, host)

    def patch(self, old: Bits, new: Bits, dtype: str) -> Patch:
        after = from_bits(new, dtype)
        place = np.dtype(np.int32 if after.numel() < 1 << 31 else np.int64)
        most = max(0, after.nbytes - 1) // (place.itemsize + after.element_size())
        places, values = np.empty(most, place), torch.empty(most, dtype=after.dtype)
        before = integers(from_bits(old, dtype)).numpy()
        if (count := differences.pick(before, integers(after).numpy(), places, integers(values).numpy())) < 0:
            return Patch(None, self.keep(after))
        return Patch(self.keep(torch.from_numpy(places[:count])), self.keep(values[:count]))

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pinned)
        # Not torch's copy, which is split over threads that wait for each other.
        target, source = (integers(one).numpy() if one.element_size() < 8 else one.numpy() for one in (kept, tensor))
        np.copyto(target, source)
        return kept
