"""Who may ask, and the line that is logged of each request. Nothing of the ledger is read before a request passed."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable
from urllib.parse import quote

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rose.clock import utc
from rose.ledger import address
from rose.terminal import echo

#: Whoever watches over the process has no token, and learns nothing by it.
OPEN_PATHS = frozenset({"/healthz"})
_TEXT_MAX = 500


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error as every error is answered."""
    return JSONResponse({"code": status, "message": message}, status, headers)


class Guard:
    """Lets pass who sends the bearer token; without one, what is asked of a loopback name. Prints a line for each
    request on stderr."""

    def __init__(self, app: ASGIApp, token: str | None, parameters: Iterable[str]) -> None:
        """`parameters` are those whose values may be logged."""
        self._app = app
        self._token = token
        self._parameters = frozenset(parameters)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_ns, status = time.monotonic_ns(), 500
        request = HTTPConnection(scope)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await (self._refused(request) or self._app)(scope, receive, noted)
        finally:
            echo(self._line(request, scope["method"], status, time.monotonic_ns() - began_ns), err=True)

    def _refused(self, request: HTTPConnection) -> ASGIApp | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin", "")
        why = address.refusal(request.scope["method"], host, origin, has_token=self._token is not None)
        if why is not None:
            return refusal(403, why)
        if self._token is None:
            return None
        sent = request.headers.get("authorization", "").encode("latin-1")
        # Not the path of `request.url`, which is made of what the Host header says too.
        if request.scope["path"] in OPEN_PATHS or hmac.compare_digest(sent, f"Bearer {self._token}".encode()):
            return None
        return refusal(401, "send the token as `Authorization: Bearer TOKEN`", {"WWW-Authenticate": "Bearer"})

    def _line(self, request: HTTPConnection, method: str, status: int, took_ns: int) -> str:
        """Values of parameters that there are none of are left out: somebody may send a token as one."""
        query = "&".join(
            f"{quote(name)}={quote(value, safe=',:') if name in self._parameters else '...'}"
            for name, value in request.query_params.multi_items()
        )
        asked = quote(request.scope["path"]) + (f"?{query}" if query else "")
        peer = request.client.host if request.client else "-"
        return f"{utc(time.time_ns())} {peer} {method} {asked[:_TEXT_MAX]} {status} {took_ns / 1e6:.1f} ms"
