"""An HTTP server in a loop that runs already: Uvicorn, with what the gateway needs set."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from rose.client.address import notice_gone
from rose.http_limits import ACCEPTS, IDLE_S, Connections, LimitedProtocol

#: Connections that may wait to be taken up: the turns of a step come all at once. The kernel has a bound of its own.
BACKLOG = 4096
#: What a request's `state` may hold: what to call, without arguments, if its client goes away before it is answered.
ON_CLIENT_GONE = "on_client_gone"
#: Requests have so long to end when the server stops, and are cancelled after that.
_STOP_S = 1


class HttpServer:
    """`bind` takes the port, where connections wait until `start`; `stop` unbinds."""

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
        self._server = _Server(config)
        self._listening: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def stopping(self) -> bool:
        return self._server.should_exit

    def bind(self) -> None:
        """Raises OSError if the port is taken."""
        self._listening = _bound(self._host, self._port)

    async def start(self) -> None:
        """Serve, and bind before that if `bind` was not called."""
        if self._listening is None:
            self.bind()
        assert self._listening is not None
        self._serving = asyncio.create_task(self._server.serve([self._listening]))
        await self._server.listening.wait()
        self._listening.listen(BACKLOG)

    async def stop(self) -> None:
        """Safe to call of a server that was not started."""
        self._server.end()
        if self._serving is not None:
            await self._serving
        elif self._listening is not None:
            self._listening.close()


class _Protocol(LimitedProtocol):
    """Uvicorn's, which costs less so.

    ASGI's own way to hear that a client goes away is to wait for another message: a task for each request.
    """

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.pipeline:
            # A long body stops the reading until the next message is waited for, and its end would not be heard.
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.disconnected:
            on_client_gone = cycle.scope["state"].get(ON_CLIENT_GONE)
            if on_client_gone is not None:
                on_client_gone()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening, self._ending = asyncio.Event(), asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Return once the server is to stop; Uvicorn would look ten times a second."""
        await self._ending.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the process that the server is in."""
        yield


def _bound(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    # Head and body of an answer are two packets: the second one is not to wait until the first is acknowledged. asyncio
    # sets this only for sockets that name their protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What a client that is gone has asked for would be made all the same.
    notice_gone(listening)
    return listening
