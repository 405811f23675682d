"""What agents ask: heartbeats, and turns to be taken off an engine; and the step that a fleet's own loop has open."""

from __future__ import annotations

from aiohttp import web

from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.answers import done, message
from rose.runtime.scheduling.messages import Heartbeat, PreemptRequest, StepRequest


def routes(controller: Controller) -> list[web.RouteDef]:
    async def heartbeat(request: web.Request) -> web.Response:
        return message(await controller.heartbeat(Heartbeat.model_validate_json(await request.read())))

    async def preempt(request: web.Request) -> web.Response:
        return message(await controller.preempt(PreemptRequest.model_validate_json(await request.read())))

    async def step(request: web.Request) -> web.Response:
        controller.set_step(StepRequest.model_validate_json(await request.read()))
        return done()

    return [web.post("/heartbeat", heartbeat), web.post("/preempt", preempt), web.post("/step", step)]
