"""What clients ask of their runs: to open, renew and close them, to publish versions and record events."""

from __future__ import annotations

from aiohttp import web

from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.answers import done, message
from rose.runtime.scheduling.messages import CloseRun, OpenedRun, OpenRun, PublishVersion, RenewRun, RunEvents
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.status import run_status


def routes(controller: Controller) -> list[web.RouteDef]:
    async def open_run(request: web.Request) -> web.Response:
        run = controller.open_run(OpenRun.model_validate_json(await request.read()))
        return message(_opened(run, request))

    async def list_runs(_request: web.Request) -> web.Response:
        return web.json_response([run_status(controller, run) for run in controller.runs])

    async def show(request: web.Request) -> web.Response:
        return web.json_response(run_status(controller, controller.runs.get(_id(request))))

    async def renew(request: web.Request) -> web.Response:
        wanted = RenewRun.model_validate_json(await request.read())
        return message(_opened(controller.renew(_id(request), wanted.fence, wanted.expires_s), request))

    async def publish(request: web.Request) -> web.Response:
        controller.publish(_id(request), PublishVersion.model_validate_json(await request.read()))
        return done()

    async def record(request: web.Request) -> web.Response:
        await controller.record(_id(request), RunEvents.model_validate_json(await request.read()))
        return done()

    async def close(request: web.Request) -> web.Response:
        controller.close_run(_id(request), CloseRun.model_validate_json(await request.read()))
        return done()

    return [
        web.post("/runs", open_run),
        web.get("/runs", list_runs),
        web.get("/runs/{run_id}", show),
        web.delete("/runs/{run_id}", close),
        web.post("/runs/{run_id}/renew", renew),
        web.post("/runs/{run_id}/versions", publish),
        web.post("/runs/{run_id}/events", record),
    ]


def _id(request: web.Request) -> str:
    return request.match_info["run_id"]


def _opened(run: Run, request: web.Request) -> OpenedRun:
    facts = run.facts
    return OpenedRun(
        run_id=facts.run_id,
        fence=facts.fence,
        version=facts.version,
        step=facts.step,
        # By the address that the client came to.
        url=f"{request.url.origin()}/runs/{facts.run_id}",
        expires_s=facts.expires_s,
    )
