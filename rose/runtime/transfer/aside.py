"""Where weights that stay in place are read and decoded beside a running engine: a stream, and host memory, of its own.

On the stream neither does this work wait for a step, nor a step for it. A stream is entered thread by thread: every
thread that works on the device has to. The memory is pinned for an accelerator, and kept from one version to the next.
On the CPU there is no stream and nothing is pinned; all else is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from rose.runtime.transfer import differences
from rose.runtime.transfer.bits import dtype_name, from_bits, integers, to_bits
from rose.runtime.transfer.device import Patch
from rose.runtime.transfer.header import Bits
from rose.runtime.transfer.slab import Slab
from rose.runtime.transfer.turns import Turn, at_once, portions

#: Patches of all tensors share segments; a tensor that is read has one of its own.
_PATCHES_BYTES = 64 << 20
_TENSOR_BYTES = 1 << 20


class Lane:
    """What one thread works on one tensor with; what it hands out is its own until the lane is left."""

    def __init__(self, *, pinned: bool) -> None:
        self._read = Slab(pinned=pinned, segment_bytes=_TENSOR_BYTES)
        self._made = Slab(pinned=False, segment_bytes=_TENSOR_BYTES)

    @property
    def pinned_bytes(self) -> int:
        """Host memory that is read into."""
        return self._read.nbytes

    def read(self, name: str, tensor: torch.Tensor, turn: Turn = at_once) -> Bits:
        """A copy of the tensor's bits in host memory; a portion that is copied is a turn.

        Raises TransferError for a dtype without a name.
        """
        dtype_name(name, tensor)
        host = self._read.take(tensor.numel(), tensor.dtype).reshape(tensor.shape)
        for target, source in portions(host, tensor):
            with turn():
                target.copy_(source)
        return to_bits(name, host)

    def room(self, old: Bits, dtype: str) -> Bits:
        """An array like `old` to decode into."""
        like = from_bits(old, dtype)
        return to_bits(dtype, self._made.take(like.numel(), like.dtype).reshape(like.shape))

    def patch(self, old: Bits, new: Bits, dtype: str, waiting: Slab) -> Patch:
        """What changes `old` into `new`, as `Patch.between`, kept in `waiting`."""
        after = from_bits(new, dtype)
        place = torch.int32 if after.numel() < 1 << 31 else torch.int64
        most = max(0, after.nbytes - 1) // (place.itemsize + after.element_size())
        places, values = self._made.take(most, place), self._made.take(most, after.dtype)
        count = differences.pick(
            integers(from_bits(old, dtype)).numpy(), integers(after).numpy(), places.numpy(), integers(values).numpy()
        )
        if count < 0:
            return Patch(None, waiting.keep(after))
        return Patch(waiting.keep(places[:count]), waiting.keep(values[:count]))

    def clear(self) -> None:
        """Take all back."""
        self._read.clear()
        self._made.clear()


class Aside:
    """Beside an engine whose weights are on `device`. `waiting` holds what one version changes until its commit.

    Each thread that reads at the same time keeps pinned memory for the largest tensor that it ever read.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        #: Where work on an accelerator is queued.
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.waiting = Slab(pinned=device.type == "cuda", segment_bytes=_PATCHES_BYTES)
        self._idle: deque[Lane] = deque()

    def entered(self) -> AbstractContextManager[Any]:
        """What the calling thread does on the device within is on the stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """A lane for one tensor, on the stream. It is nobody else's meanwhile."""
        try:
            lane = self._idle.pop()
        except IndexError:
            lane = Lane(pinned=self.device.type == "cuda")
        try:
            with self.entered():
                yield lane
        finally:
            lane.clear()
            self._idle.append(lane)

    @property
    def pinned_bytes(self) -> int:
        """Host memory that is kept for the device, while no lane is in use."""
        return self.waiting.nbytes + sum(lane.pinned_bytes for lane in self._idle)
