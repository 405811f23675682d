"""Connections to engines, against servers that say exactly what a test has them say."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from rose.client.connections import GONE_S
from rose.runtime.scheduling.engines import engine_connections
from rose.runtime.scheduling.engines.engine_connections import EngineConnections

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _server(answer: Answer) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server's URL, and the requests that it has read: each connection gets `answer` for each request."""
    requests: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-L"))
                requests.append(head + await reader.readexactly(length))
                await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate", requests
    finally:
        server.close()
        for writer in writers:
            writer.close()


def _says(*parts: bytes, pause_s: float = 0.0) -> Answer:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def _connections() -> AsyncIterator[EngineConnections]:
    connections = EngineConnections()
    try:
        yield connections
    finally:
        connections.close()


async def _post(connections: EngineConnections, url: str, token: str | None = None) -> tuple[int, bytes]:
    async with connections.post(url, b'{"a": 1}', token) as response:
        return response.status, await response.read()


def _run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


def test_a_request_holds_what_an_engine_needs_and_its_connection_is_used_again() -> None:
    async def work() -> None:
        ports: list[int] = []

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ports.append(writer.get_extra_info("peername")[1])
            writer.write(_OK)

        async with _connections() as connections, _server(answer) as (url, requests):
            assert await _post(connections, url, "secret") == (200, b"{}")
            assert await _post(connections, url) == (200, b"{}")
            host = url.split("/")[2].encode()
            assert requests[0] == (
                b"POST /generate HTTP/1.1\r\nHost: " + host + b"\r\nContent-Type: application/json\r\n"
                b'Authorization: Bearer secret\r\nContent-Length: 8\r\n\r\n{"a": 1}'
            )
            assert b"Authorization" not in requests[1]
            assert ports[0] == ports[1]

    _run(work)


def test_requests_at_once_have_connections_of_their_own() -> None:
    async def work() -> None:
        async with _connections() as connections, _server(_says(_OK, pause_s=0.05)) as (url, requests):
            answers = await asyncio.gather(*(_post(connections, url) for _ in range(20)))
            assert answers == [(200, b"{}")] * 20
            assert len(requests) == 20

    _run(work)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n", b"6\r\n world\r\n0\r\n\r\n"],
        [b"HTTP/1.1 20", b"0 OK\r\nContent-Le", b"ngth: 11\r\n\r\nhel", b"lo world"],
    ],
)
def test_a_body_may_come_in_pieces(pieces: list[bytes]) -> None:
    async def work() -> None:
        async with _connections() as connections, _server(_says(*pieces, pause_s=0.01)) as (url, _):
            assert await _post(connections, url) == (200, b"hello world")
            assert await _post(connections, url) == (200, b"hello world")

    _run(work)


def test_lines_are_given_as_they_come() -> None:
    async def work() -> None:
        heard = asyncio.Event()

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\none\ntwo\nt\r\n")
            await heard.wait()  # What was sent so far has been read, or this never goes on.
            writer.write(b"4\r\nhree\r\n0\r\n\r\n")

        async with (
            _connections() as connections,
            _server(answer) as (url, _),
            connections.post(url, b"{}") as response,
        ):
            lines: list[bytes] = []
            async for line in response.lines():
                lines.append(line)
                if line == b"two":
                    heard.set()
            assert lines == [b"one", b"two", b"three"]

    _run(work)


def test_an_engine_that_refuses_says_why() -> None:
    async def work() -> None:
        refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nwrong"
        async with _connections() as connections, _server(_says(refusal)) as (url, _):
            assert await _post(connections, url) == (400, b"wrong")

    _run(work)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP"),
    ],
)
def test_an_engine_that_breaks_off_is_a_connection_error(said: bytes, problem: str) -> None:
    async def work() -> None:
        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            await writer.drain()
            writer.close()

        async with _connections() as connections, _server(answer) as (url, _):
            with pytest.raises(ConnectionError, match=problem):
                await _post(connections, url)

    _run(work)


def test_nobody_listens() -> None:
    async def work() -> None:
        async with _connections() as connections:
            with pytest.raises(OSError, match=r"refused|Connect call failed"):
                await _post(connections, "http://127.0.0.1:9/generate")

    _run(work)


def test_a_connection_that_the_engine_closed_or_may_have_closed_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async def once(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(_OK)
            await writer.drain()
            writer.close()

        async with _connections() as connections, _server(once) as (url, requests):
            for _ in range(3):
                assert await _post(connections, url) == (200, b"{}")
                await asyncio.sleep(0.05)
            assert len(requests) == 3
        monkeypatch.setattr(engine_connections, "IDLE_MAX_S", 0.05)
        ports: set[int] = set()

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ports.add(writer.get_extra_info("peername")[1])
            writer.write(_OK)

        async with _connections() as connections, _server(answer) as (url, _):
            for _ in range(3):
                await _post(connections, url)
                await asyncio.sleep(0.1)
            assert len(ports) == 3

    _run(work)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_to_a_host_that_vanishes_is_closed_by_the_kernel(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def work() -> None:
        async with _connections() as connections, _server(_says(_OK)) as (url, _):
            await _post(connections, url)
            (idle,) = connections._open
            assert idle._transport is not None
            connected = idle._transport.get_extra_info("socket")
            assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == GONE_S * 1000

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(work(), 30))


def test_who_leaves_before_the_end_drops_the_connection() -> None:
    async def work() -> None:
        gone = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            assert await reader.read() == b""
            gone.set()

        async with _connections() as connections, _server(answer) as (url, _):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await _post(connections, url)
            await gone.wait()

    _run(work)


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("ftp://engine/x", None),
        ("engine:80", None),
        ("http://engine/", "a\r\nX-Other: b"),
        ("http://en\ngine/\r\n", "t"),
    ],
)
def test_what_cannot_be_sent_is_refused(url: str, token: str | None) -> None:
    async def work() -> None:
        async with _connections() as connections:
            with pytest.raises((ValueError, OSError)):
                await _post(connections, url, token)

    _run(work)
