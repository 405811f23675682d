"""Where a run is, what can go wrong there, and connections that may be waited on for long."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rose.errors import UserError

#: How long a controller that is away is tried again.
AWAY_S = 120.0
#: A peer whose host does not answer for about so long is gone. Its program may be silent for as long as it likes.
GONE_S = 30
_IDLE_S, _PROBE_S = 10, 5


class ClientError(UserError):
    """The base of this package's errors: something that was given is wrong, or the controller refused it."""


class ControllerAwayError(ClientError):
    """The controller did not answer, or not do what it was asked, for as long as the run was to wait for it."""

    exit_code: ClassVar[int] = 1


class RunTakenError(ClientError):
    """A newer client resumed the run: this one may neither publish nor record for it any more."""

    exit_code: ClassVar[int] = 1


class RunEndedError(ClientError):
    """The controller has no such run, or it is closed."""

    exit_code: ClassVar[int] = 1


class RunExpiredError(ClientError):
    """The controller did not hear of the run for too long, and nobody took it over: it can be resumed."""

    exit_code: ClassVar[int] = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAddress:
    """A run at a controller. Plain data: it can be sent to another process."""

    url: str
    run_id: str
    #: The client's number among those that had the run: an older one may not publish or record.
    fence: int
    token: str | None = field(default=None, repr=False)
    away_s: float = AWAY_S

    @property
    def base(self) -> str:
        """The base URL of the run: `base/generate` is what an SGLang client is given."""
        return f"{self.url}/runs/{self.run_id}"

    @property
    def headers(self) -> dict[str, str]:
        return authorization(self.token)


def authorization(token: str | None) -> dict[str, str]:
    """The headers that say who asks."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def refusal(url: str, status: int, answer: Any) -> ClientError:
    """The error for an answer that says no."""
    reason = (answer.get("error") or answer.get("text")) if isinstance(answer, dict) else None
    text = str(reason or f"status {status}")
    if status == 401:
        return ClientError(f"the controller at {url} wants its token: give `token` (`gateway.token` of its fleet file)")
    if status == 409 and "taken over" in text:
        return RunTakenError(text)
    if status == 409 and "has expired" in text:
        return RunExpiredError(text)
    if status == 404 or (status == 409 and "is closed" in text):
        return RunEndedError(f"the controller at {url} refused: {text}")
    return ClientError(f"the controller at {url} refused: {text}")


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
