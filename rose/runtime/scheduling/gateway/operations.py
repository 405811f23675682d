"""What operators ask: how the fleet is, and to leave a device alone."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rose.clock import monotonic_ns
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.answers import done, read
from rose.runtime.scheduling.messages import DrainDevice
from rose.runtime.scheduling.metrics import exposition
from rose.runtime.scheduling.status import missing, status, warnings, workers


def routes(controller: Controller) -> list[Route]:
    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readiness(_request: Request) -> Response:
        lacking = missing(controller, monotonic_ns())
        # What turns can be played without is no reason to send them elsewhere.
        answer = {"ready": not lacking, "missing": lacking, "warnings": warnings(controller)}
        return JSONResponse(answer, status_code=503 if lacking else 200)

    async def show_status(_request: Request) -> Response:
        return JSONResponse(status(controller, monotonic_ns()))

    async def list_workers(_request: Request) -> Response:
        return JSONResponse(workers(controller, monotonic_ns()))

    async def metrics(_request: Request) -> Response:
        body, content_type = exposition(controller)
        return Response(body, headers={"Content-Type": content_type})

    async def drain(request: Request) -> Response:
        body = await read(request.receive)
        wanted = DrainDevice.model_validate_json(body) if body else DrainDevice()
        controller.drain(request.path_params["device_id"], wanted.reason)
        return done()

    async def undrain(request: Request) -> Response:
        device_id = request.path_params["device_id"]
        was_drained = device_id in controller.drained
        controller.undrain(device_id)
        return JSONResponse({"was_drained": was_drained})

    return [
        Route("/health", health),
        Route("/readiness", readiness),
        Route("/status", show_status),
        Route("/metrics", metrics),
        Route("/workers", list_workers),
        Route("/devices/{device_id}/drain", drain, methods=["POST"]),
        Route("/devices/{device_id}/undrain", undrain, methods=["POST"]),
    ]
