"""Connections to rollout engines: plain HTTP/1.1, kept open between requests.

A general client takes more of the controller's processor than all else that a turn costs it: this one does what engines
need and leaves the parsing to `httptools`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import NamedTuple, Self, cast
from urllib.parse import urlsplit

import httptools

from rose.client.connections import notice_gone

#: Uvicorn, and SGLang with it, closes a connection that was idle for 5 s: one that is nearly that old may be gone by
#: the time that a request arrives.
IDLE_MAX_S = 4.0


class EngineConnections:
    """A pool without a bound. Make it, and close it, inside a running loop."""

    def __init__(self) -> None:
        self._idle: defaultdict[_Address, list[_Connection]] = defaultdict(list)
        self._open: set[_Connection] = set()
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()

    def post(self, url: str, body: bytes, token: str | None = None) -> Response:
        """POST JSON: `async with` it is the response, whose body may still be on its way. Who leaves before that drops
        the connection.

        Raises ConnectionError or another OSError if the engine is away or goes away, or answers something else than
        HTTP, and ValueError for a URL or a token that cannot be sent.
        """
        address, head = _request_head(url, token)
        return Response(self, address, b"%b%d\r\n\r\n%b" % (head, len(body), body))

    async def take(self, address: _Address) -> _Connection:
        """The connection that was used last, or a new one: those that are not needed grow old and go."""
        now_s = self._loop.time()
        idle = self._idle[address]
        while idle:
            connection = idle.pop()
            if connection.reusable and now_s - connection.idle_since_s < IDLE_MAX_S:
                return connection
            connection.abort()
        _, connection = await self._loop.create_connection(
            lambda: _Connection(self._loop, self._open, idle),
            address.host,
            address.port,
            ssl=True if address.tls else None,
        )
        return connection

    def give_back(self, address: _Address, connection: _Connection) -> None:
        if connection.reusable:
            connection.idle_since_s = self._loop.time()
            self._idle[address].append(connection)
        else:
            connection.abort()


class Response:
    """What an engine answers to a request, within `async with`: `status`, and the body whole or by lines.

    `sent` tells an engine that went away from one that could not be reached.
    """

    def __init__(self, connections: EngineConnections, address: _Address, request: bytes) -> None:
        self._connections, self._address, self._request = connections, address, request
        self._connection: _Connection
        self.sent = False

    async def __aenter__(self) -> Self:
        self._connection = connection = await self._connections.take(self._address)
        try:
            connection.send(self._request)
            self.sent = True
            while not connection.status:
                await connection.wait()
        except BaseException:
            connection.abort()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connections.give_back(self._address, self._connection)

    @property
    def status(self) -> int:
        return self._connection.status

    async def read(self) -> bytes:
        """The whole body. Raises ConnectionError if it breaks off."""
        connection = self._connection
        while not connection.complete:
            await connection.wait()
        return connection.take()

    async def lines(self) -> AsyncIterator[bytes]:
        """Lines as they come, without their ends. Raises ConnectionError if the body breaks off."""
        connection, rest = self._connection, b""
        while True:
            *lines, rest = (rest + connection.take()).split(b"\n")
            for line in lines:
                yield line
            if connection.parts:
                continue
            if connection.complete:
                break
            await connection.wait()
        if rest:
            yield rest


class _Address(NamedTuple):
    tls: bool
    host: str
    port: int


@lru_cache(maxsize=4096)
def _request_head(url: str, token: str | None) -> tuple[_Address, bytes]:
    """Where to, and the head of the request up to the length of its body."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        raise ValueError(f"{url!r} is not the address of an engine: http://HOST:PORT")
    lines = [f"POST {parts.path or '/'} HTTP/1.1", f"Host: {parts.netloc}", "Content-Type: application/json"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if not all(line.isprintable() for line in lines):
        raise ValueError("an engine's address or token holds a character that no header may hold")
    tls = parts.scheme == "https"
    address = _Address(tls, parts.hostname, parts.port or (443 if tls else 80))
    return address, "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")


class _Connection(asyncio.Protocol):
    """One request at a time. The methods whose names begin with `on_` are those that `httptools` calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connections: set[_Connection], idle: list[_Connection]) -> None:
        self._loop, self._connections, self._idle = loop, connections, idle
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._failure: OSError | None = None
        self._keep_alive = True
        self.idle_since_s = 0.0
        self.status = 0
        #: Nothing is asked for, or all of the answer has come.
        self.complete = True
        #: Of the body, what nobody has taken yet.
        self.parts: list[bytes] = []

    @property
    def reusable(self) -> bool:
        return self.complete and self._keep_alive and self._failure is None

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self.status, self.complete, self.parts = 0, False, []
        self._transport.write(request)

    def take(self) -> bytes:
        """What has come of the body since the last time."""
        taken, self.parts = b"".join(self.parts), []
        return taken

    async def wait(self) -> None:
        """Until something arrives. Raises OSError if nothing will."""
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._failure is not None and not self.complete:
            raise self._failure

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Nothing else would end an idle one that is never taken again, as its engine came back at another address.
        notice_gone(transport.get_extra_info("socket"))
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self in self._idle:
            self._idle.remove(self)
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("the engine closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self.complete:
            # Nobody asked.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the engine does not speak HTTP: {error}"))
            self.abort()
        self._wake()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.complete, self._keep_alive = True, self._parser.should_keep_alive()

    def _fail(self, failure: OSError) -> None:
        if self._failure is None:
            self._failure = failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
