"""Runs Uvicorn in an existing event loop, reads bodies, and notices when a client disconnects."""

import asyncio
import functools
import socket
from collections.abc import Callable
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp, Receive, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from rose.http_calls import notice_gone
from rose.http_limits import ACCEPTS, IDLE_S
from rose.http_limits.protocol import Connections, LimitedProtocol
from rose.runtime.scheduling.refusals import RefusedError

BACKLOG = 4096  # All turns of a step may connect at once.
#: Key in a request's `state`: a function for the client's disconnect.
ON_CLIENT_GONE = "on_client_gone"
_STOP_S = 1  # Grace of open requests after a stop.
REQUEST_BYTES_MAX = 64 << 20
#: Headers that name a conversation, whose turns go to the engine with its prefix.
SESSIONS = ("x-session-id", "x-session-affinity", "x-smg-routing-key", "x-conversation-id")


class HttpServer:
    """A Uvicorn server. After `bind`, connections wait until `start`."""

    def __init__(self, application: ASGIApp, host: str, port: int) -> None:
        self._host, self._port = host, port
        protocol: Any = functools.partial(_Protocol, limits=Connections())
        config = uvicorn.Config(
            application,
            interface="asgi3",
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            date_header=False,
            backlog=ACCEPTS,
            timeout_keep_alive=int(IDLE_S),
            timeout_graceful_shutdown=_STOP_S,
        )
        self._server = uvicorn.Server(config)
        self._listening: socket.socket | None = None

    @property
    def stopping(self) -> bool:
        return self._server.should_exit

    def bind(self) -> None:
        family, _, _, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # The second packet of an answer must not wait for an acknowledgement. asyncio does not set this option for all
        # sockets.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_gone(listening)  # Otherwise engines work for clients of lost hosts.
        self._listening = listening

    async def start(self) -> None:
        if self._listening is None:
            self.bind()
        assert self._listening is not None
        # `serve` would take over signals, and poll.
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup([self._listening])
        self._listening.listen(BACKLOG)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._server.started and self._listening is not None:
            await self._server.shutdown([self._listening])
        elif self._listening is not None:
            self._listening.close()


class _Protocol(LimitedProtocol):
    """A protocol that calls a function when a client disconnects, so that no task waits for the disconnect."""

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # A paused reader would miss the disconnect.

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.disconnected and (gone := cycle.scope["state"].get(ON_CLIENT_GONE)) is not None:
            gone()


class ClientGoneError(Exception):
    """The client closed the connection before it got its answer."""


async def read(receive: Receive) -> bytes:
    """Return the whole body of a request. Raises RefusedError or ClientGoneError."""
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
            raise RefusedError(413, f"a request has at most {REQUEST_BYTES_MAX} bytes: send less at once")
    return b"".join(parts)


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
