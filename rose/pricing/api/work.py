"""Work on worker threads within limits: how many at once, how many waiting, how long. Answers are kept for a while."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from rose.pricing.api.parameters import RequestError

T = TypeVar("T")

#: An answer is kept for so long, so that what an edited price book or a damaged file changes is seen soon.
KEPT_S = 60.0
_KEPT_MAX = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What requests may ask of the server."""

    threads: int = 2
    #: Requests that wait for a thread; more are refused.
    queue: int = 16
    timeout_s: float = 30.0
    #: Most rows that an answer has.
    rows: int = 10_000


class Work:
    """Runs and keeps answers. Of one event loop: its methods are called from there only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(limits.threads, "api")
        self._running: dict[Hashable, asyncio.Future[Any]] = {}
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    async def answer(self, key: Hashable, make: Callable[[], T], stale_s: float = KEPT_S) -> T:
        """What `make` returns, made once for all that ask for `key` until it is KEPT_S old. Raises what `make` raises.

        Up to `stale_s` an older one is given while a new one is being made.

        Raises RequestError with 429 where too many wait, and with 504 where it takes too long: it is made all the same,
        and keeps its thread until then.
        """
        made_s, value = self._kept.get(key, (float("-inf"), None))
        age_s = time.monotonic() - made_s
        if age_s < KEPT_S:
            self._kept.move_to_end(key)
            return cast(T, value)
        if age_s < stale_s:
            # Where no thread is free, it is made anew later.
            with contextlib.suppress(RequestError):
                _ = self._running.get(key) or self._start(key, make)
            return cast(T, value)
        work = self._running.get(key) or self._start(key, make)
        done, _ = await asyncio.wait({work}, timeout=self._limits.timeout_s)
        if not done:
            raise RequestError(
                f"the answer takes longer than {self._limits.timeout_s:g} s: ask for a shorter window, or again in a "
                "while, since it goes on being made",
                504,
            )
        return cast(T, work.result())

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, key: Hashable, make: Callable[[], T]) -> asyncio.Future[T]:
        if len(self._running) >= self._limits.threads + self._limits.queue:
            raise RequestError(f"{len(self._running)} requests are being answered or wait: try again later", 429)
        work = asyncio.get_running_loop().run_in_executor(self._pool, make)
        self._running[key] = work
        work.add_done_callback(partial(self._done, key))
        return work

    def _done(self, key: Hashable, work: asyncio.Future[Any]) -> None:
        del self._running[key]
        # Asked for also where nobody waits for it any more.
        if work.cancelled() or work.exception() is not None:
            return
        self._kept[key] = time.monotonic(), work.result()
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
