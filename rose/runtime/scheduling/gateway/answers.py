"""How the gateway reads and answers: JSON, errors as `{"error": ...}`. Who went away is answered nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope

from rose.runtime.scheduling.gateway.http_server import ON_CLIENT_GONE

#: A prompt of eight million tokens; a longer body is refused.
REQUEST_BYTES_MAX = 64 << 20


class BodyTooLongError(Exception):
    """A request's body is longer than REQUEST_BYTES_MAX."""


class ClientGoneError(Exception):
    """The client closed the connection before it was answered."""


def message(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")


def done() -> Response:
    """There is nothing to say."""
    return JSONResponse({})


def failure(status: int, error: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": error}, status_code=status, headers=headers)


async def read(receive: Receive) -> bytes:
    """The whole body of a request. Raises BodyTooLongError, and ClientGoneError."""
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
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Client:
    """Whoever waits for the answer to a request to an HttpServer.

    Once it goes away within `with`, `leave` is called, which cancels what is awaited unless somebody puts something
    else there: nobody would read the answer. ClientGoneError is raised for what was cancelled so.
    """

    def __init__(self, scope: Scope) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._state, self._task, self._gone = scope["state"], task, False
        self.leave: Callable[[], object] = task.cancel

    def __enter__(self) -> Self:
        self._state[ON_CLIENT_GONE] = self._go
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        del self._state[ON_CLIENT_GONE]
        # Who is cancelled for another reason as well goes on to be.
        if kind is asyncio.CancelledError and self._gone and self._task.uncancel() == 0:
            raise ClientGoneError from None

    def _go(self) -> None:
        self._gone = True
        self.leave()
