"""Where weights that stay in place are read and decoded beside a running engine: a stream, and host memory, of its own.

On the stream neither does this work wait for a step, nor a step for it. A stream is entered thread by thread: every
thread that works on the device has to. The memory is pinned for an accelerator, and kept from one version to the next.
On the CPU there is no stream and nothing is pinned; all else is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from rose.runtime.transfer.apply.device import Patch
from rose.runtime.transfer.apply.slab import Buffers, Slab
from rose.runtime.transfer.codec import differences
from rose.runtime.transfer.codec.bits import dtype_name, from_bits, integers, to_bits
from rose.runtime.transfer.codec.header import Bits
from rose.runtime.transfer.turns import Turn, at_once, portions

_PATCHES_BYTES = 64 << 20


class Lane:
    """What one thread works on one tensor with; what it hands out is its own until the lane is left."""

    def __init__(self, read: Buffers, made: Buffers) -> None:
        self._read = read
        self._made = made
        self._lent: list[tuple[Buffers, torch.Tensor]] = []

    def read(self, name: str, tensor: torch.Tensor, turn: Turn = at_once) -> Bits:
        """A copy of the tensor's bits in host memory; a portion that is copied is a turn.

        Raises TransferError for a dtype without a name.
        """
        dtype_name(name, tensor)
        host = self._take(self._read, tensor.numel(), tensor.dtype).reshape(tensor.shape)
        for target, source in portions(host, tensor):
            with turn():
                target.copy_(source)
        return to_bits(name, host)

    def room(self, old: Bits, dtype: str) -> Bits:
        """An array like `old` to decode into."""
        like = from_bits(old, dtype)
        return to_bits(dtype, self._take(self._made, like.numel(), like.dtype).reshape(like.shape))

    def patch(self, old: Bits, new: Bits, dtype: str, waiting: Slab) -> Patch:
        """What changes `old` into `new`, as `Patch.between`, kept in `waiting`."""
        after = from_bits(new, dtype)
        place = torch.int32 if after.numel() < 1 << 31 else torch.int64
        most = max(0, after.nbytes - 1) // (place.itemsize + after.element_size())
        places, values = self._take(self._made, most, place), self._take(self._made, most, after.dtype)
        count = differences.pick(
            integers(from_bits(old, dtype)).numpy(), integers(after).numpy(), places.numpy(), integers(values).numpy()
        )
        if count < 0:
            return Patch(None, waiting.keep(after))
        return Patch(waiting.keep(places[:count]), waiting.keep(values[:count]))

    def leave(self) -> None:
        """Give all back."""
        while self._lent:
            buffers, memory = self._lent.pop()
            buffers.give_back(memory)

    def _take(self, buffers: Buffers, elements: int, dtype: torch.dtype) -> torch.Tensor:
        size_bytes = elements * dtype.itemsize
        memory = buffers.lend(size_bytes)
        self._lent.append((buffers, memory))
        return memory[:size_bytes].view(dtype)


class Aside:
    """Beside an engine whose weights are on `device`. `waiting` holds what one version changes until its commit.

    What threads read into is kept too: as much pinned memory as the tensors that were ever worked on at once take, and
    twice as much that is not pinned, each tensor's rounded up to a power of two.
    """

    def __init__(self, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.device = device
        #: Where work on an accelerator is queued.
        self.stream = torch.cuda.Stream(device) if pinned else None  # type: ignore[no-untyped-call]
        self.waiting = Slab(pinned=pinned, segment_bytes=_PATCHES_BYTES)
        self._read, self._made = Buffers(pinned=pinned), Buffers(pinned=False)

    def follow(self) -> None:
        """What is done on the stream from now on comes after what the calling thread's own stream has queued so far:
        weights that are being written are not read half done."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def entered(self) -> AbstractContextManager[Any]:
        """What the calling thread does on the device within is on the stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """A lane for one tensor, on the stream. It is nobody else's meanwhile."""
        lane = Lane(self._read, self._made)
        try:
            with self.entered():
                yield lane
        finally:
            lane.leave()

    @property
    def host_bytes(self) -> int:
        """What is kept of the host's memory."""
        return self.waiting.nbytes + self._read.nbytes + self._made.nbytes
