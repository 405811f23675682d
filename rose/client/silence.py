"""Breaking off what waits for a controller that stands still: it keeps its connections, and answers nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from rose.client.address import RunAddress
from rose.client.patience import Patience

if TYPE_CHECKING:
    import aiohttp

#: So often a controller that is waited for is asked whether it is there, and for so long its answer is waited for; both
#: are less where it is not to be waited for as long.
_ASK_S, _ANSWER_S = 5.0, 10.0


class Silence:
    """Of the controller at `address`, as long as anything is waited for; of one event loop.

    A turn may wait for minutes in which nothing passes. A process that was stopped, or hangs on its disk, looks the
    same: the kernel answers for it. So the controller is asked beside the turns whether it is there.
    """

    def __init__(self, session: aiohttp.ClientSession, address: RunAddress) -> None:
        self._session, self._address = session, address
        #: What waits, and since when.
        self._waiting: dict[asyncio.Timeout, float] = {}
        self._asking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def bounds(self) -> AsyncIterator[None]:
        """Wait inside. Raises ControllerAwayError once the controller has not said for `away_s` that it is there."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._waiting[limit] = time.monotonic()
                if self._asking is None:
                    self._asking = asyncio.create_task(self._ask())
                try:
                    yield
                finally:
                    self._waiting.pop(limit, None)
        except TimeoutError:
            if not limit.expired():
                raise
            patience = Patience(self._address.url, self._address.away_s, waits=False)
            raise patience.over("silent", "it stands still") from None

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        away_s = self._address.away_s
        since: float | None = None
        try:
            while self._waiting:
                await asyncio.sleep(min(_ASK_S, away_s / 4))
                asked = time.monotonic()
                if await self._is_there():
                    since = None
                elif since is None:
                    # Once may be the fault of this process, which was stopped itself or was busy in the event loop.
                    since = asked
                else:
                    self._break_off(since, time.monotonic() - away_s)
        finally:
            self._asking = None

    async def _is_there(self) -> bool:
        """Whether it answers; what it answers does not matter."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=min(_ANSWER_S, self._address.away_s / 2))
        with suppress(aiohttp.ClientError, OSError):
            async with self._session.get(f"{self._address.url}/health", timeout=limit):
                return True
        return False

    def _break_off(self, since: float, until: float) -> None:
        """End what has waited without an answer since before `until`."""
        for limit, began in list(self._waiting.items()):
            if max(since, began) <= until:
                del self._waiting[limit]
                limit.reschedule(asyncio.get_running_loop().time())
