"""Connections on which an answer may be waited for long, and that break once the other host is gone."""

from __future__ import annotations

import socket

#: A peer whose host does not answer for about so long is gone. Its program may be silent for as long as it likes.
GONE_S = 30
_IDLE_S, _PROBE_S = 10, 5


def notice_gone(connection: socket.socket) -> None:
    """Have the kernel break off a TCP connection whose peer's host has vanished without a word, as by a power cut.

    Set of a socket that listens, it holds for what connects to it. While nothing is on its way, the kernel asks the
    other one whether the connection is still there; what is on its way and is not acknowledged breaks it as well.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE_S),
        (socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.TCP_KEEPCNT, (GONE_S - _IDLE_S) // _PROBE_S),
        (socket.TCP_USER_TIMEOUT, GONE_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
