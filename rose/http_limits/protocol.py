"""Uvicorn that cuts slow clients, pipelined requests and, at the connection limit, the longest-waiting client."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rose.http_limits import ANSWER_BYTES_MIN, ANSWER_S, BODY_BYTES_MIN, BODY_S, HEAD_BYTES_MAX, HEAD_S, connections_max

_SWEEP_S = 1.0

Part = Literal["head", "body", "answer", "next"]
_LIMITS_S: dict[Part, float] = {"head": HEAD_S, "body": BODY_S, "answer": ANSWER_S, "next": float("inf")}


class Connections:
    """The connections of one server, and since when each connection waits for its client."""

    def __init__(self) -> None:
        self._most = connections_max()
        self._count = 0
        self._waiting: dict[LimitedProtocol, tuple[float, Part]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def made(self, connection: LimitedProtocol) -> None:
        """Add a connection. Above the limit, cut the connection that has waited longest for its client."""
        self._count += 1
        self.waits(connection, "head")
        if self._count > self._most:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.cut()
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def waits(self, connection: LimitedProtocol, part: Part) -> None:
        self._waiting.pop(connection, None)
        self._waiting[connection] = asyncio.get_running_loop().time(), part

    def works(self, connection: LimitedProtocol) -> None:
        self._waiting.pop(connection, None)

    def lost(self, connection: LimitedProtocol) -> None:
        self._count -= 1
        self._waiting.pop(connection, None)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s, late = loop.time(), []
        for connection, (since_s, part) in self._waiting.items():
            if now_s - since_s < HEAD_S:
                break
            if now_s - since_s >= _LIMITS_S[part]:
                late.append((connection, part))
        for connection, part in late:
            if part == "answer" and connection.takes():
                self.waits(connection, part)
            else:
                del self._waiting[connection]
                connection.cut()
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep) if self._count else None


class LimitedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol within limits. A server's connections share `limits`."""

    def __init__(self, *arguments: Any, limits: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._reading: Part = "next"
        self._awaited: Part | None = "head"
        self._head_bytes = self._body_bytes = self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._connected = cast(asyncio.Transport, transport)
        self._limits.made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.lost(self)
        super().connection_lost(exc)

    def cut(self) -> None:
        self._connected.abort()

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if self._reading == "next":
            self._reading = "head"  # All bytes between requests belong to the next head, blank lines too.
        super().data_received(data)
        if self._reading == "head" and self._head_bytes > HEAD_BYTES_MAX:
            self.cut()
        else:
            self._settle()

    def on_message_begin(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self.cut()
            raise ConnectionAbortedError("a request was sent before the last one was answered")
        super().on_message_begin()
        self._reading = "head"

    def on_headers_complete(self) -> None:
        self._reading = "body"
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading, self._head_bytes = "next", 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._settle()

    def takes(self) -> bool:
        """Return whether the client took at least ANSWER_BYTES_MIN of the answer since the last call."""
        before, self._unsent_bytes = self._unsent_bytes, self._connected.get_write_buffer_size()
        return before - self._unsent_bytes >= ANSWER_BYTES_MIN

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent_bytes = self._connected.get_write_buffer_size()
        self._settle()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._settle()

    def _settle(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        answering = cycle is not None and not cycle.response_complete
        awaited: Part | None = None if answering and self._reading != "body" else self._reading
        if self.flow.write_paused:
            awaited = "answer"
        comes = awaited == "body" and self._body_bytes >= BODY_BYTES_MIN
        if awaited == self._awaited and not comes:
            return
        self._awaited, self._body_bytes = awaited, 0
        if awaited is None:
            self._limits.works(self)
        elif not self._connected.is_closing():
            self._limits.waits(self, awaited)
