"""An HTTP server in a loop that runs already: Uvicorn, with what the gateway needs set."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Connections that may wait to be taken up: the turns of a step come all at once. The kernel has a bound of its own.
BACKLOG = 4096
#: Clients keep connections open between two turns.
_KEEP_ALIVE_S = 75
#: What a request's `state` may hold: what to call, without arguments, if its client goes away before it is answered.
ON_CLIENT_GONE = "on_client_gone"
#: Requests have so long to end when the server stops, and are cancelled after that.
_STOP_S = 1


class HttpServer:
    """`start` binds, `stop` unbinds."""

    def __init__(self, application: ASGIApp, host: str, port: int) -> None:
        self._host, self._port = host, port
        config = uvicorn.Config(
            application, interface="asgi3", http=_Protocol, ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, proxy_headers=False, backlog=BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S, timeout_graceful_shutdown=_STOP_S,
        )  # fmt: skip
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def stopping(self) -> bool:
        return self._server.should_exit

    async def start(self) -> None:
        """Raises OSError if the port is taken."""
        self._serving = asyncio.create_task(self._server.serve([_bound(self._host, self._port)]))
        await self._server.listening.wait()

    async def stop(self) -> None:
        """Safe to call of a server that was not started."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Protocol(HttpToolsProtocol):
    """Uvicorn's. ASGI's own way to hear that a client goes away is to wait for another message: a task a request."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.cycle is not None and self.cycle.disconnected:
            on_client_gone = self.cycle.scope["state"].get(ON_CLIENT_GONE)
            if on_client_gone is not None:
                on_client_gone()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the process that the server is in."""
        yield


def _bound(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)
