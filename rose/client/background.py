"""An event loop in a thread, so that a program without one makes turns side by side."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")
#: What ends an iteration, in its queue.
_END = object()


class BackgroundLoop:
    """Runs coroutines until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rose-client", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def iterate(self, items: AsyncIterator[_T]) -> AsyncIterator[_T]:
        """What `items` yields in the background, in the caller's loop. It is not waited for whether it is taken: a turn
        bounds it."""
        here = asyncio.get_running_loop()
        queue: asyncio.Queue[Any] = asyncio.Queue()

        async def pump() -> None:
            try:
                async for item in items:
                    here.call_soon_threadsafe(queue.put_nowait, item)
            finally:
                here.call_soon_threadsafe(queue.put_nowait, _END)

        running = self.submit(pump())
        try:
            while (item := await queue.get()) is not _END:
                yield item
            await asyncio.wrap_future(running)
        finally:
            running.cancel()

    def close(self) -> None:
        """Give up what runs, and end the thread."""
        self.submit(_cancel_others()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
