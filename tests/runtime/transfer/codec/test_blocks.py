import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rose.runtime.transfer.codec import blocks
from rose.runtime.transfer.codec.header import Header


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


def test_a_code_longer_than_the_array_is_not_sent_and_the_block_is_brought_there_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rose.runtime.transfer.codec.rangecoding.encode", lambda *_: None)
    base, new = np.arange(100, dtype=np.uint16), np.arange(100, dtype=np.uint16)[::-1].copy()
    header = Header(encoding="small", item_bytes=2, mantissa_bits=7, elements=100, changed=0)
    fast = blocks.fast(100, *blocks.find(base, new, header.half))
    assert blocks.advance(base, fast, header) == (100, None)
    np.testing.assert_array_equal(base, new)
