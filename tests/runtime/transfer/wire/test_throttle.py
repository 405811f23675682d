from __future__ import annotations

import threading
import time

import pytest

from rose.runtime.transfer.wire.connections import Throttle


def test_the_mean_over_all_threads_stays_below_the_cap() -> None:
    started_s = time.monotonic()
    throttle = Throttle(1e6)

    def take() -> None:
        for _ in range(5):
            throttle.took(20_000)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - started_s >= 3 * 5 * 20_000 / 1e6


@pytest.mark.parametrize("cap", [0, -1.0])
def test_a_cap_that_lets_nothing_pass_is_refused(cap: float) -> None:
    with pytest.raises(ValueError, match="expected more than 0"):
        Throttle(cap)
