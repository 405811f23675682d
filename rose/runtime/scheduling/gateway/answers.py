"""How the gateway reads and answers: JSON, errors as `{"error": ...}`. Who went away is answered nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def ends_with_client(scope: Scope) -> Iterator[None]:
    """Cancel what is awaited here, and raise ClientGoneError, once the client goes away: nobody would read the answer.

    For requests to an HttpServer.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    scope["state"][ON_CLIENT_GONE] = leave
    try:
        yield
    except asyncio.CancelledError:
        # Who is cancelled for another reason as well goes on to be.
        if gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        del scope["state"][ON_CLIENT_GONE]
