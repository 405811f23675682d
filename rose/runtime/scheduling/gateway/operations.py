"""What operators ask: how the fleet is, and to leave a device alone."""

from __future__ import annotations

from aiohttp import web

from rose.clock import monotonic_ns
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.answers import done
from rose.runtime.scheduling.messages import DrainDevice
from rose.runtime.scheduling.metrics import exposition
from rose.runtime.scheduling.status import missing, status, workers


def routes(controller: Controller) -> list[web.RouteDef]:
    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readiness(_request: web.Request) -> web.Response:
        lacking = missing(controller, monotonic_ns())
        return web.json_response({"ready": not lacking, "missing": lacking}, status=503 if lacking else 200)

    async def show_status(_request: web.Request) -> web.Response:
        return web.json_response(status(controller, monotonic_ns()))

    async def list_workers(_request: web.Request) -> web.Response:
        return web.json_response(workers(controller, monotonic_ns()))

    async def metrics(_request: web.Request) -> web.Response:
        body, content_type = exposition(controller)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def drain(request: web.Request) -> web.Response:
        body = await request.read()
        wanted = DrainDevice.model_validate_json(body) if body else DrainDevice()
        controller.drain(request.match_info["device_id"], wanted.reason)
        return done()

    async def undrain(request: web.Request) -> web.Response:
        controller.undrain(request.match_info["device_id"])
        return done()

    return [
        web.get("/health", health),
        web.get("/readiness", readiness),
        web.get("/status", show_status),
        web.get("/metrics", metrics),
        web.get("/workers", list_workers),
        web.post("/devices/{device_id}/drain", drain),
        web.post("/devices/{device_id}/undrain", undrain),
    ]
