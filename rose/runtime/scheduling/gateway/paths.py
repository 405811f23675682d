"""Serves agents, clients and operators over HTTP."""

from collections.abc import AsyncIterator

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rose.clock import monotonic_ns
from rose.ledger.hosts.routes import PREFIX as LEDGER_PREFIX
from rose.runtime.scheduling import messages
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.http_server import Client, read
from rose.runtime.scheduling.gateway.service import TURNS_MAX, check_team, of_team, token_of
from rose.runtime.scheduling.metrics import exposition
from rose.runtime.scheduling.refusals import RefusedError, error_body
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.status import missing, run_status, status, warnings
from rose.runtime.scheduling.turn_service import Outcome, answer_so_far
from rose.runtime.scheduling.turns.request import TurnRequest
from rose.runtime.scheduling.turns.turns import Turn

AGENT_PATHS = frozenset({"/heartbeat", "/preempt"})
_RUNS, _GENERATE = "/runs/", "/generate"
_OWN = ("/heartbeat", "/preempt", "/health", "/readiness", "/status", "/metrics", "/devices", LEDGER_PREFIX)
_OF_RUN = ("", "renew", "versions", "events", "generate")


def failure(
    status: int, error: str, headers: dict[str, str] | None = None, param: str | None = None, kind: str | None = None
) -> Response:
    return JSONResponse(error_body(status, error, param, kind), status_code=status, headers=headers)


def is_own(path: str) -> bool:
    if path == "/runs" or path.startswith(_RUNS):
        return path.count("/") < 4 and path[len(_RUNS) :].partition("/")[2] in _OF_RUN
    return path.startswith(_OWN) and not path.startswith("/health_")


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
        message = messages.OpenRun.model_validate_json(await read(request.receive))
        if message.resume is not None:
            check_team(token_of(request.scope), controller.runs.get(message.resume))
        return _opened_run(controller.open_run(of_team(token_of(request.scope), message)), request)

    def own_run(request: Request) -> str:
        run_id = str(request.path_params["run_id"])
        check_team(token_of(request.scope), controller.runs.get(run_id))
        return run_id

    async def list_runs(_request: Request) -> Response:
        return JSONResponse([run_status(controller, run) for run in controller.runs])

    async def show_run(request: Request) -> Response:
        return JSONResponse(run_status(controller, controller.runs.get(request.path_params["run_id"])))

    async def renew(request: Request) -> Response:
        message = messages.RenewRun.model_validate_json(await read(request.receive))
        run = controller.runs.renew(own_run(request), message.fence, monotonic_ns(), message.expires_s)
        return _opened_run(run, request)

    async def publish(request: Request) -> Response:
        version = messages.PublishVersion.model_validate_json(await read(request.receive))
        # A proxy hides the client's address.
        proxied = {"forwarded", "x-forwarded-for"} & set(request.headers)
        client_address = None if proxied or request.client is None else request.client.host
        controller.publish(own_run(request), version, client_address)
        return JSONResponse({})

    async def record(request: Request) -> Response:
        await controller.record(own_run(request), messages.RunEvents.model_validate_json(await read(request.receive)))
        return JSONResponse({})

    async def close_run(request: Request) -> Response:
        controller.close_run(own_run(request), messages.CloseRun.model_validate_json(await read(request.receive)))
        return JSONResponse({})

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readiness(_request: Request) -> Response:
        lacking = missing(controller, monotonic_ns())
        # Warnings do not make the fleet unready.
        answer = {"ready": not lacking, "missing": lacking, "warnings": warnings(controller)}
        return JSONResponse(answer, status_code=503 if lacking else 200)

    async def show_status(_request: Request) -> Response:
        return JSONResponse(status(controller, monotonic_ns()))

    async def metrics(_request: Request) -> Response:
        body, content_type = exposition(controller)
        return Response(body, headers={"Content-Type": content_type})

    async def drain(request: Request) -> Response:
        message = messages.DrainDevice.model_validate_json(await read(request.receive) or b"{}")
        return JSONResponse({"drained": controller.drain(request.path_params.get("device_id"), message.reason)})

    async def undrain(request: Request) -> Response:
        return JSONResponse({"undrained": controller.undrain(request.path_params.get("device_id"))})

    async def reload(_request: Request) -> Response:
        controller.reload()
        return JSONResponse({})

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
        Route("/devices/drain", drain, methods=["POST"]),
        Route("/devices/undrain", undrain, methods=["POST"]),
        Route("/devices/reload", reload, methods=["POST"]),
        Route("/devices/{device_id}/drain", drain, methods=["POST"]),
        Route("/devices/{device_id}/undrain", undrain, methods=["POST"]),
    ]


def _message(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")


def _opened_run(run: Run, request: Request) -> Response:
    facts = {name: getattr(run.facts, name) for name in ("run_id", "fence", "version", "step", "expires_s")}
    return _message(messages.OpenedRun(url=f"{request.base_url}runs/{run.run_id}", **facts))


def is_turn(scope: Scope) -> bool:
    path = str(scope["path"])
    of_run = path.endswith(_GENERATE) and path.startswith(_RUNS) and path.count("/") == 3
    return scope["method"] == "POST" and (of_run or path == _GENERATE)


def run_of_turn(scope: Scope) -> str | None:
    return str(scope["path"])[len(_RUNS) : -len(_GENERATE)] or None


async def answer_turn(controller: Controller, request: TurnRequest, scope: Scope, receive: Receive, send: Send) -> None:
    run_id = str(run_of_turn(scope))
    now_ns = monotonic_ns()
    run = controller.runs.hear(run_id, now_ns)
    check_team(token_of(scope), run)
    load = controller.loads[run_id]
    turn = Turn(request, now_ns, run_id, run.version_min)
    if len(load.turns) >= TURNS_MAX and not controller.turns.knows(turn):
        full = f"run {run_id!r} has {len(load.turns)} open turns, the maximum"
        raise RefusedError(429, f"{full}: wait for answers before you send more")
    with Client(scope) as client:
        if request.stream:
            await _stream(controller.turns.stream(turn, load), send)
            return
        outcome = await controller.turns.generate(turn, load, client)
    await _send_outcome(outcome, send)


async def _send_outcome(outcome: Outcome, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(outcome.body))]
    await send({"type": "http.response.start", "status": outcome.status, "headers": headers})
    await send({"type": "http.response.body", "body": outcome.body})


async def _stream(parts: AsyncIterator[Turn | Outcome], send: Send) -> None:
    """Send server-sent events. Each event has all tokens so far, as in SGLang."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    begun = False
    async for part in parts:
        if not begun:
            if isinstance(part, Outcome) and part.status != 200:
                await _send_outcome(part, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            begun = True
        body = part.body if isinstance(part, Outcome) else answer_so_far(part)
        await send({"type": "http.response.body", "body": b"data: " + body + b"\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
