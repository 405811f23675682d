"""Serves agents, clients and operators over HTTP: JSON in, JSON or server-sent events out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rose.clock import monotonic_ns
from rose.runtime.scheduling import messages
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.http_server import ON_CLIENT_GONE
from rose.runtime.scheduling.metrics import exposition
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.status import missing, run_status, status, warnings
from rose.runtime.scheduling.turns import request as requests
from rose.runtime.scheduling.turns.turn_service import Outcome, answer_so_far
from rose.runtime.scheduling.turns.turns import Turn

REQUEST_BYTES_MAX = 64 << 20
TURNS_MAX = 10_000  # Maximum of open turns of one run; more are answered 429. The process's connections limit all runs.
AGENT_PATHS = frozenset({"/heartbeat", "/preempt"})
_RUNS, _GENERATE = "/runs/", "/generate"
_NO_RUN = "turns are made for a run: open one at POST /runs, and send its turns to /runs/RUN_ID/generate"


class BodyTooLongError(Exception):
    """A request's body is longer than REQUEST_BYTES_MAX."""


class ClientGoneError(Exception):
    """The client closed the connection before it was answered."""


def failure(status: int, error: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": error}, status_code=status, headers=headers)


async def read(receive: Receive) -> bytes:
    """Return the whole body of a request. Raises BodyTooLongError and ClientGoneError."""
    parts: list[bytes] = []
    length, more = 0, True
    while more:
        part: dict[str, Any] = dict(await receive())
        if part["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(part.get("body", b""))
        more = part.get("more_body", False)
        length += len(parts[-1])
        if length > REQUEST_BYTES_MAX:
            raise BodyTooLongError
    return b"".join(parts)


class Client:
    """Calls `leave` if the client disconnects inside `with`: by default, cancel the task and raise ClientGoneError."""

    def __init__(self, scope: Scope) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._state, self._task, self._gone = scope["state"], task, False
        self.leave: Callable[[], object] = task.cancel

    def __enter__(self) -> Self:
        self._state[ON_CLIENT_GONE] = self._go
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        del self._state[ON_CLIENT_GONE]
        # A second cancellation for another reason still counts.
        if kind is asyncio.CancelledError and self._gone and self._task.uncancel() == 0:
            raise ClientGoneError from None

    def _go(self) -> None:
        self._gone = True
        self.leave()


def routes(controller: Controller) -> list[Route]:
    async def heartbeat(request: Request) -> Response:
        message = messages.Heartbeat.model_validate_json(await read(request.receive))
        with Client(request.scope):
            reply = await controller.heartbeat(message)
        return _message(reply)

    async def preempt(request: Request) -> Response:
        message = messages.PreemptRequest.model_validate_json(await read(request.receive))
        return _message(await controller.preempt(message))

    async def open_run(request: Request) -> Response:
        run = controller.open_run(messages.OpenRun.model_validate_json(await read(request.receive)))
        return _opened(run, request)

    async def list_runs(_request: Request) -> Response:
        return JSONResponse([run_status(controller, run) for run in controller.runs])

    async def show_run(request: Request) -> Response:
        return JSONResponse(run_status(controller, controller.runs.get(request.path_params["run_id"])))

    async def renew(request: Request) -> Response:
        message = messages.RenewRun.model_validate_json(await read(request.receive))
        run = controller.runs.renew(request.path_params["run_id"], message.fence, monotonic_ns(), message.expires_s)
        return _opened(run, request)

    async def publish(request: Request) -> Response:
        version = messages.PublishVersion.model_validate_json(await read(request.receive))
        # Behind a proxy the connection has the proxy's address.
        proxied = {"forwarded", "x-forwarded-for"} & set(request.headers)
        client_address = None if proxied or request.client is None else request.client.host
        controller.publish(request.path_params["run_id"], version, client_address)
        return JSONResponse({})

    async def record(request: Request) -> Response:
        await controller.record(
            request.path_params["run_id"], messages.RunEvents.model_validate_json(await read(request.receive))
        )
        return JSONResponse({})

    async def close_run(request: Request) -> Response:
        controller.close_run(
            request.path_params["run_id"], messages.CloseRun.model_validate_json(await read(request.receive))
        )
        return JSONResponse({})

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readiness(_request: Request) -> Response:
        lacking = missing(controller, monotonic_ns())
        # A warning stops no turn, so it does not make the fleet unready.
        answer = {"ready": not lacking, "missing": lacking, "warnings": warnings(controller)}
        return JSONResponse(answer, status_code=503 if lacking else 200)

    async def show_status(_request: Request) -> Response:
        return JSONResponse(status(controller, monotonic_ns()))

    async def metrics(_request: Request) -> Response:
        body, content_type = exposition(controller)
        return Response(body, headers={"Content-Type": content_type})

    async def drain(request: Request) -> Response:
        message = messages.DrainDevice.model_validate_json(await read(request.receive) or b"{}")
        controller.drain(request.path_params["device_id"], message.reason)
        return JSONResponse({})

    async def undrain(request: Request) -> Response:
        return JSONResponse({"was_drained": controller.undrain(request.path_params["device_id"])})

    return [
        Route("/heartbeat", heartbeat, methods=["POST"]),
        Route("/preempt", preempt, methods=["POST"]),
        Route("/runs", open_run, methods=["POST"]),
        Route("/runs", list_runs),
        Route("/runs/{run_id}", show_run),
        Route("/runs/{run_id}", close_run, methods=["DELETE"]),
        Route("/runs/{run_id}/renew", renew, methods=["POST"]),
        Route("/runs/{run_id}/versions", publish, methods=["POST"]),
        Route("/runs/{run_id}/events", record, methods=["POST"]),
        Route("/health", health),
        Route("/readiness", readiness),
        Route("/status", show_status),
        Route("/metrics", metrics),
        Route("/devices/{device_id}/drain", drain, methods=["POST"]),
        Route("/devices/{device_id}/undrain", undrain, methods=["POST"]),
    ]


def _message(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")


def _opened(run: Run, request: Request) -> Response:
    facts = run.facts
    opened = messages.OpenedRun(
        run_id=facts.run_id,
        fence=facts.fence,
        version=facts.version,
        step=facts.step,
        url=f"{request.base_url}runs/{facts.run_id}",
        expires_s=facts.expires_s,
    )
    return _message(opened)


def is_turn(scope: Scope) -> bool:
    return scope["method"] == "POST" and str(scope["path"]).endswith(_GENERATE)


async def answer_turn(controller: Controller, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one turn without Starlette's routing: this is by far the most frequent request."""
    run_id = str(scope["path"])[len(_RUNS) : -len(_GENERATE)]
    if not str(scope["path"]).startswith(_RUNS) or not run_id or "/" in run_id:
        await failure(404, _NO_RUN)(scope, receive, send)
        return
    request = requests.read(await read(receive))
    now_ns = monotonic_ns()
    version_min = controller.runs.hear(run_id, now_ns).version_min
    load = controller.loads[run_id]
    turn = Turn(request, now_ns, run_id, version_min)
    assert controller.turns is not None
    if len(load.turns) >= TURNS_MAX and not controller.turns.knows(turn):
        full = f"run {run_id!r} has {len(load.turns)} turns, as many as a run may have"
        await failure(429, f"{full}: send more once some of them are answered")(scope, receive, send)
        return
    with Client(scope) as client:
        if request.stream:
            await _stream(controller.turns.stream(turn, load), send)
            return
        outcome = await controller.turns.generate(turn, load, client)
    await _whole(outcome, send)


async def _whole(outcome: Outcome, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(outcome.body))]
    await send({"type": "http.response.start", "status": outcome.status, "headers": headers})
    await send({"type": "http.response.body", "body": outcome.body})


async def _stream(parts: AsyncIterator[Turn | Outcome], send: Send) -> None:
    """Send server-sent events; each holds all tokens so far, as SGLang's do."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    begun = False
    async for part in parts:
        if not begun:
            # A turn that fails before its first token gets a plain answer.
            if isinstance(part, Outcome) and part.status != 200:
                await _whole(part, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            begun = True
        body = part.body if isinstance(part, Outcome) else answer_so_far(part)
        await send({"type": "http.response.body", "body": b"data: " + body + b"\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
