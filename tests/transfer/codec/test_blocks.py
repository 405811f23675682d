import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rose.transfer.codec import blocks


def test_once_one_block_has_failed_nothing_is_done_to_the_others_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_cores", lambda: 2)
    begun = threading.Event()
    failed = threading.Event()
    ended = []

    def act(job: int) -> None:
        if job == 0:
            assert begun.wait(10)
            failed.set()
            raise InterruptedError
        begun.set()
        assert failed.wait(10)
        time.sleep(0.01)
        ended.append(job)

    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(blocks, "_threads", lambda: pool)
        with pytest.raises(InterruptedError):
            list(blocks.in_threads(act, range(16)))
        after = list(ended)
        time.sleep(0.05)
    assert ended == after
