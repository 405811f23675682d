"""Reads the bodies of requests, and notices when a client disconnects."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from starlette.types import Message, Receive, Scope

from rose.runtime.scheduling.gateway.http_server import ON_CLIENT_GONE

REQUEST_BYTES_MAX = 64 << 20
#: Headers that name a conversation, whose turns go to the engine with its prefix.
SESSIONS = ("x-session-id", "x-session-affinity", "x-smg-routing-key", "x-conversation-id")


class BodyTooLongError(Exception):
    """The body of a request is longer than REQUEST_BYTES_MAX."""


class ClientGoneError(Exception):
    """The client closed the connection before it got its answer."""


async def read(receive: Receive) -> bytes:
    """Return the whole body of a request. Raises BodyTooLongError or ClientGoneError."""
    parts: list[bytes] = []
    length, more = 0, True
    while more:
        part: dict[str, Any] = dict(await receive())
        if part["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(part.get("body", b""))
        more = part.get("more_body", False)
        length += len(parts[-1])
        if length > REQUEST_BYTES_MAX:
            raise BodyTooLongError
    return b"".join(parts)


def again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first delivers `body` again."""
    parts = iter([body])

    async def received() -> Message:
        for part in parts:
            return {"type": "http.request", "body": part, "more_body": False}
        return await receive()

    return received


class Client:
    """Calls `leave` if the client disconnects; the `with` block then raises ClientGoneError."""

    def __init__(self, scope: Scope) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._state, self._task, self._gone = scope["state"], task, False
        self.leave: Callable[[], object] = task.cancel

    def __enter__(self) -> Self:
        self._state[ON_CLIENT_GONE] = self._disconnected
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        del self._state[ON_CLIENT_GONE]
        # A second cancellation for another reason still counts.
        if kind is asyncio.CancelledError and self._gone and self._task.uncancel() == 0:
            raise ClientGoneError from None

    def _disconnected(self) -> None:
        self._gone = True
        self.leave()
