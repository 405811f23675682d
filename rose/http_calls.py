"""HTTP calls to a controller: the token header, timeouts, and sockets that notice a vanished host."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

AWAY_S = 300.0  # Longer than `rose down --keep-runs` and `rose up` take.
GONE_S = 30  # A peer whose host is silent for about this long is gone. Its program may be silent for longer.
LINE_BYTES_MAX = 1 << 30  # A streamed turn of a hundred thousand tokens is one line.
_IDLE_S, _PROBE_S = 10, 5


def authorization(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def ask_json(url: str, body: object, token: str | None, timeout_s: float) -> Any:
    """Return the JSON answer to a GET or, with a body, a POST. Raises OSError, ValueError or HTTPException."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **authorization(token)})
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return json.loads(response.read() or b"null")


def notice_gone(connection: socket.socket) -> None:
    """Let the kernel break a connection if the other host vanishes. Accepted sockets inherit this."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE_S),
        (socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.TCP_KEEPCNT, (GONE_S - _IDLE_S) // _PROBE_S),
        (socket.TCP_USER_TIMEOUT, GONE_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def watched_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that waits for long answers, but breaks if the peer's host vanishes."""
    family, kind, protocol, *_ = address
    connection = socket.socket(family, kind, protocol)
    notice_gone(connection)
    return connection
