"""Runs Uvicorn in an existing event loop, with the settings that the gateway needs."""

import asyncio
import functools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from rose.http_calls import notice_gone
from rose.http_limits import ACCEPTS, IDLE_S
from rose.http_limits.protocol import Connections, LimitedProtocol

BACKLOG = 4096  # Connections that may wait for accept: a step's turns come all at once. The kernel has its own limit.
#: Key in a request's `state`: a function to call if the client leaves before its answer.
ON_CLIENT_GONE = "on_client_gone"
_STOP_S = 1  # After a stop, requests have this long to end; then they are cancelled.


class HttpServer:
    """An HTTP server on Uvicorn. Connections wait from `bind` until `start`."""

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
        family, _, _, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # Head and body of an answer are two packets: the second must not wait for the first's acknowledgement. asyncio
        # sets this only for sockets that name their protocol.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_gone(listening)  # Otherwise engines keep working for a client whose host is gone.
        self._listening = listening

    async def start(self) -> None:
        if self._listening is None:
            self.bind()
        assert self._listening is not None
        self._serving = asyncio.create_task(self._server.serve([self._listening]))
        await self._server.listening.wait()
        self._listening.listen(BACKLOG)

    async def stop(self) -> None:
        self._server.end()
        if self._serving is not None:
            await self._serving
        elif self._listening is not None:
            self._listening.close()


class _Protocol(LimitedProtocol):
    """Reports a client's disconnect at less cost than ASGI, where each request needs a waiting task."""

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # A long body pauses reading, and the disconnect would go unnoticed.

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.disconnected and (gone := cycle.scope["state"].get(ON_CLIENT_GONE)) is not None:
            gone()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening, self._ending = asyncio.Event(), asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Return once the server must stop. Uvicorn's own loop polls ten times a second."""
        await self._ending.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
