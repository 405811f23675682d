"""The HTTP server: its paths, its access check, and its errors as JSON."""

import functools
import hmac
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, Any
from urllib.parse import quote

import duckdb
import uvicorn
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from rose.clock import utc
from rose.errors import UserError, did_you_mean
from rose.http_limits import ACCEPTS
from rose.http_limits.protocol import Connections, LimitedProtocol
from rose.ledger import access, address
from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError
from rose.pricing.api import metrics, questions
from rose.pricing.api.questions import LedgerQuery, ServedLedger
from rose.terminal import echo

KEPT_S = 60.0  #: How long metrics are served before they are computed again.
_OPEN_PATH = "/healthz"  #: Monitoring needs no token here.
_QUERIES: dict[str, tuple[type[LedgerQuery], str]] = {
    "/cost": (questions.CostQuery, "Return the cost of a period by team, run, task ..."),
    "/saved": (questions.SavedQuery, "Return the savings of a period: fleet, teams and runs."),
    "/forecast": (questions.ForecastQuery, "Return the forecast cost of a whole month."),
    "/report": (questions.ReportQuery, "Return the cost report of a run."),
    "/trust": (questions.TrustQuery, "Return whether a ledger is sound, and when it was last verified."),
}
_FAILURES = (RequestValidationError, HTTPException, UserError, duckdb.Error, OSError)
_TEXT_MAX = 500


def application(
    served: Sequence[ServedLedger], *, token: str | None = None, clock: questions.Clock = questions.now
) -> FastAPI:
    app = FastAPI(
        title="ROSE: what rollouts cost",
        version=version("rose-serving"),
        docs_url=None,  # Pages that load programs from elsewhere.
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(HTTPBearer(auto_error=False))],  # The guard asks for the token; this describes it.
        exception_handlers=dict.fromkeys(_FAILURES, _failed),
    )
    making = threading.Lock()  # Answers are made one at a time: each may take much of the memory.
    kept: list[tuple[float, bytes]] = []

    def add(path: str, kind: type[LedgerQuery], description: str) -> None:
        def answer(query: LedgerQuery) -> dict[str, Any]:
            one = questions.chosen(served, query.ledger)
            with making:
                data = query.answer(one, clock())
            # An event in the access log, where the ledger's rules ask for one.
            with access.logged(one.ledger, "report", f"api {path} {query.model_dump_json(exclude_defaults=True)}"):
                return {"ledger": one.name, **data}

        answer.__annotations__["query"] = Annotated[kind, Query()]  # A client gives the fields of its own kind.
        app.get(path, name=f"get_{path[1:]}", description=description)(answer)

    for path, (kind, description) in _QUERIES.items():
        add(path, kind, description)

    @app.middleware("http")
    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        began_ns = time.monotonic_ns()
        response = _stopped(request, token) or await proceed(request)
        peer, path = request.client.host if request.client else "-", quote(request.scope["path"])[:_TEXT_MAX]
        took_ms = (time.monotonic_ns() - began_ns) / 1e6
        # Without its parameters: somebody may send a token as one.
        echo(f"{utc(time.time_ns())} {peer} {request.method} {path} {response.status_code} {took_ms:.1f} ms", err=True)
        return response

    @app.get("/metrics", response_class=PlainTextResponse)
    def get_metrics() -> Response:
        """Return this month's figures for Prometheus."""
        # A scraper does not wait: during computation it gets the last figures.
        if (not kept or time.monotonic() - kept[0][0] >= KEPT_S) and making.acquire(blocking=not kept):
            try:
                kept[:] = [(time.monotonic(), metrics.text(served, clock()))]
            finally:
                making.release()
        return Response(kept[0][1], headers={"Content-Type": metrics.CONTENT_TYPE})

    @app.get(_OPEN_PATH)
    async def get_health() -> dict[str, int]:
        """Return a response that shows that the server works. No token is needed."""
        return {"code": 200}

    return app


@contextmanager
def serve(served: Sequence[ServedLedger], host: str, port: int, *, token: str | None = None) -> Iterator[str]:
    """Serve on `host`:`port` while the `with` block runs, and yield the server's URL. Port 0: any free port. Raises
    OpenAddressError if other hosts could read without a token, SecretError for a short token, or LedgerError."""
    address.check_guarded(host, token, "--token-file or ROSE_API_TOKEN")
    protocol: Any = functools.partial(LimitedProtocol, limits=Connections())
    config = uvicorn.Config(
        application(served, token=token),
        http=protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        backlog=ACCEPTS,
    )
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(where[:2], family=family, backlog=ACCEPTS)
    except OSError as error:
        raise LedgerError(f"cannot listen on {host}:{port}: {error.strerror or error}; give another address") from error
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="api", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"code": status, "message": message}, status, headers)


def _stopped(request: Request, token: str | None) -> Response | None:
    """Return the response that refuses a request, or None if it may proceed. No ledger is read before this check."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin", "")
    why = address.refusal(request.method, host, origin, has_token=token is not None)
    if why is not None:
        return _error(403, why)
    # The path of `request.url` also depends on the Host header.
    if token is None or request.scope["path"] == _OPEN_PATH:
        return None
    sent = request.headers.get("authorization", "").encode("latin-1")
    if hmac.compare_digest(sent, f"Bearer {token}".encode()):
        return None
    return _error(401, "send the token as `Authorization: Bearer TOKEN`", {"WWW-Authenticate": "Bearer"})


async def _failed(request: Request, error: Exception) -> Response:
    match error:
        case RequestValidationError():
            return _wrong_parameter(request, error)
        case HTTPException():
            known = ", ".join((*_QUERIES, "/metrics", _OPEN_PATH, "/openapi.json"))
            texts = {404: f"unknown path {request.scope['path']}; known paths: {known}", 405: "only GET is answered"}
            return _error(error.status_code, texts.get(error.status_code, error.detail), dict(error.headers or {}))
        case UserError():
            return _error(questions.status_of(error), str(error))
    text = next(iter(str(error).splitlines()), type(error).__name__)
    return _error(503, f"the ledger cannot be read: {layout.unreadable(text)}")


def _wrong_parameter(request: Request, error: RequestValidationError) -> Response:
    fault = error.errors()[0]
    name = str(fault["loc"][1])[:_TEXT_MAX]
    if fault["type"] == "extra_forbidden":
        known = _QUERIES[request.scope["path"]][0].model_fields.keys()
        return _error(400, f"unknown parameter {name!r}{did_you_mean(name, known)}")
    text = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    return _error(400, f"parameter {name} is {request.query_params.get(name, '')[:_TEXT_MAX]!r}: {text}")
