"""Whether an engine that does not answer yet goes on loading, or hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

#: A process that waits for others, or hangs, does less than this in that time: seconds of processor time, or bytes
#: read, of which a large model on a slow disk has many.
WINDOW_S = 30.0
_COMPUTED_S, _READ_BYTES = 1.5, 10 << 20


class Loading:
    """`processes` gives those of the engine. Times are seconds, given by the caller, who asks each minute at least."""

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]], now_s: float) -> None:
        self._processes = processes
        self._done, self._at_s = self._work(), now_s

    def goes_on(self, now_s: float) -> bool:
        """Whether it did something within the last WINDOW_S."""
        done = self._work()
        # What a process that ended had done is gone.
        self._done = min(done[0], self._done[0]), min(done[1], self._done[1])
        if done[0] - self._done[0] >= _COMPUTED_S or done[1] - self._done[1] >= _READ_BYTES:
            self._done, self._at_s = done, now_s
        return now_s - self._at_s < WINDOW_S

    def _work(self) -> tuple[float, int]:
        """(processor time, bytes read) of the processes that there are."""
        computed_s, read = 0.0, 0
        with suppress(psutil.Error):
            for process in self._processes():
                with suppress(psutil.Error):
                    times, counted = process.cpu_times(), process.io_counters()
                    computed_s += times.user + times.system
                    # Those that are mapped are on no counter but the disk's.
                    read += counted.read_chars + counted.read_bytes
        return computed_s, read
