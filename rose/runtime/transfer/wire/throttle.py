"""Holds what passes to a rate: a token bucket that several threads draw from."""

from __future__ import annotations

import threading
import time

#: How much unused time is kept: after a pause this many seconds' worth may pass at once.
_BURST_S = 0.05


class Throttle:
    """Lets at most `max_bytes_per_s` pass, over all threads that share it; None sets no limit.

    From its making on the mean never exceeds the limit: the bucket is empty at first.
    """

    def __init__(self, max_bytes_per_s: float | None = None) -> None:
        if max_bytes_per_s is not None and max_bytes_per_s <= 0:
            raise ValueError(f"max_bytes_per_s is {max_bytes_per_s}, expected more than 0, or None for no limit")
        self._max_bytes_per_s = max_bytes_per_s
        self._lock = threading.Lock()
        #: When all that passed so far is paid for, seconds on the monotonic clock.
        self._paid_s = time.monotonic()

    def took(self, count_bytes: int) -> None:
        """Say that bytes came; returns when the limit lets more come."""
        if self._max_bytes_per_s is None:
            return
        with self._lock:
            self._paid_s = max(self._paid_s, time.monotonic() - _BURST_S) + count_bytes / self._max_bytes_per_s
            paid_s = self._paid_s
        if (wait_s := paid_s - time.monotonic()) > 0:
            time.sleep(wait_s)
