"""What a step has queued on a GPU: kept short, so that a step that is to give way is soon off the device."""

from __future__ import annotations

from collections import deque
from typing import Any

#: A GPU is kept at work by one layer that runs and one that waits behind it.
LAYERS_AHEAD = 2


class RunAhead:
    """The last layers' ends, as events of the GPU. Without it Python queues a whole step before its first layer ran.

    No more than `layers` are queued at a time. Raises ValueError below 1.
    """

    def __init__(self, layers: int = LAYERS_AHEAD) -> None:
        import torch

        if layers < 1:
            raise ValueError(f"layers={layers}: a step has at least the layer that runs on the GPU; give 1 or more")
        self.layers = layers
        self._new_event = torch.cuda.Event
        self._queued: deque[Any] = deque()
        self._free: list[Any] = []

    def before_layer(self) -> None:
        """Return when no more than `layers` are queued, the one that is to be launched among them."""
        event = self._free.pop() if self._free else self._new_event()  # type: ignore[no-untyped-call]
        event.record()
        self._queued.append(event)
        while len(self._queued) >= self.layers:
            self._wait()

    def drain(self) -> None:
        """Return when the GPU has done all that this thread's step queued before the last `before_layer`."""
        while self._queued:
            self._wait()

    def _wait(self) -> None:
        event = self._queued.popleft()
        event.synchronize()
        self._free.append(event)
