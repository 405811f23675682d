"""HTTP connections to one server. Another thread can interrupt them at any time, even while they connect."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from rose.transfer.errors import TransferError


class Connections:
    def __init__(
        self, scheme: str, host: str, port: int | None, timeout_s: float, check_address: Callable[[str], None]
    ) -> None:
        self._kind = _Https if scheme == "https" else _Http
        self._address = (host, port)
        self._timeout_s, self.check_address = timeout_s, check_address
        self._idle: list[_Http] = []  # Connections without a request under way; the last used one is at the end.
        self._lock = threading.RLock()
        self._interrupted = False
        self.open: dict[_Http, socket.socket] = {}  # A second descriptor per socket: TLS takes over the first.

    def take(self) -> _Http:
        try:
            return self._idle.pop()
        except IndexError:
            connection = self._kind(*self._address, timeout=self._timeout_s)
            connection.connections = self
            return connection

    def give_back(self, connection: _Http) -> None:
        self._idle.append(connection)

    def interrupt(self) -> None:
        """Make every thread that waits for the server raise OSError, now and later."""
        with self._lock:
            self._interrupted = True
            for handle in self.open.values():
                with suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    def watch(self, connection: _Http, sock: socket.socket) -> None:
        """Register a socket before it connects. Raises ConnectionAbortedError after `interrupt`."""
        with self._lock:
            if self._interrupted:
                raise ConnectionAbortedError("the transfer was interrupted")
            self.forget(connection)
            self.open[connection] = sock.dup()

    def forget(self, connection: _Http) -> None:
        """Close the second descriptor of a closed socket. While it is open, the server sees an open connection."""
        with self._lock:
            if (handle := self.open.pop(connection, None)) is not None:
                handle.close()


class _Http(http.client.HTTPConnection):
    connections: Connections

    def connect(self) -> None:
        refused: OSError | TransferError | None = None
        # Connect to the checked address itself: the name may resolve to another one the next time.
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            try:
                self.connections.check_address(str(address[0]))
            except TransferError as error:
                refused = error
                continue
            sock = socket.socket(family, kind, protocol)
            try:
                self.connections.watch(self, sock)
                sock.settimeout(self.timeout)
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                sock.close()
                self.connections.forget(self)
                refused = error
            else:
                self.sock = sock
                return
        assert refused is not None, "a name that has no address is an error"
        raise refused

    def close(self) -> None:
        super().close()
        self.connections.forget(self)


class _Https(http.client.HTTPSConnection, _Http):
    """An HTTPS connection over the socket that `_Http` connects."""
