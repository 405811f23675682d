"""Limits the rate at which a receiver reads, in place of a slower link."""

import threading
import time

_BURST_S = 0.05  # Seconds of unused budget that are kept: after a pause, this much may pass at once.


class Throttle:
    def __init__(self, max_bytes_per_s: float) -> None:
        self._max_bytes_per_s = max_bytes_per_s
        self._lock = threading.Lock()
        self._paid_s = time.monotonic()  # The time when all received bytes are paid for, in monotonic seconds.

    def wait(self, count_bytes: int) -> None:
        with self._lock:
            self._paid_s = max(self._paid_s, time.monotonic() - _BURST_S) + count_bytes / self._max_bytes_per_s
            paid_s = self._paid_s
        if (wait_s := paid_s - time.monotonic()) > 0:
            time.sleep(wait_s)
