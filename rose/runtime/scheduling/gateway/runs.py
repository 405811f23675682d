"""What clients ask of their runs: to open, renew and close them, to publish versions and record events."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.answers import done, message, read
from rose.runtime.scheduling.messages import CloseRun, OpenedRun, OpenRun, PublishVersion, RenewRun, RunEvents
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.status import run_status


def routes(controller: Controller) -> list[Route]:
    async def open_run(request: Request) -> Response:
        run = controller.open_run(OpenRun.model_validate_json(await read(request.receive)))
        return message(_opened(run, request))

    async def list_runs(_request: Request) -> Response:
        return JSONResponse([run_status(controller, run) for run in controller.runs])

    async def show(request: Request) -> Response:
        return JSONResponse(run_status(controller, controller.runs.get(_id(request))))

    async def renew(request: Request) -> Response:
        wanted = RenewRun.model_validate_json(await read(request.receive))
        return message(_opened(controller.renew(_id(request), wanted.fence, wanted.expires_s), request))

    async def publish(request: Request) -> Response:
        version = PublishVersion.model_validate_json(await read(request.receive))
        controller.publish(_id(request), version, _client_address(request))
        return done()

    async def record(request: Request) -> Response:
        await controller.record(_id(request), RunEvents.model_validate_json(await read(request.receive)))
        return done()

    async def close(request: Request) -> Response:
        controller.close_run(_id(request), CloseRun.model_validate_json(await read(request.receive)))
        return done()

    return [
        Route("/runs", open_run, methods=["POST"]),
        Route("/runs", list_runs),
        Route("/runs/{run_id}", show),
        Route("/runs/{run_id}", close, methods=["DELETE"]),
        Route("/runs/{run_id}/renew", renew, methods=["POST"]),
        Route("/runs/{run_id}/versions", publish, methods=["POST"]),
        Route("/runs/{run_id}/events", record, methods=["POST"]),
    ]


def _id(request: Request) -> str:
    return str(request.path_params["run_id"])


def _client_address(request: Request) -> str | None:
    """Return where the client is; None behind a proxy, whose address the connection has."""
    proxied = {"forwarded", "x-forwarded-for"} & set(request.headers)
    return None if proxied or request.client is None else request.client.host


def _opened(run: Run, request: Request) -> OpenedRun:
    facts = run.facts
    return OpenedRun(
        run_id=facts.run_id,
        fence=facts.fence,
        version=facts.version,
        step=facts.step,
        # By the address that the client came to.
        url=f"{request.base_url}runs/{facts.run_id}",
        expires_s=facts.expires_s,
    )
