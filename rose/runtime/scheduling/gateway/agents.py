"""What agents ask: heartbeats, and turns to be taken off an engine."""

from __future__ import annotations

from aiohttp import web

from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.answers import message
from rose.runtime.scheduling.messages import Heartbeat, PreemptRequest


def routes(controller: Controller) -> list[web.RouteDef]:
    async def heartbeat(request: web.Request) -> web.Response:
        return message(await controller.heartbeat(Heartbeat.model_validate_json(await request.read())))

    async def preempt(request: web.Request) -> web.Response:
        return message(await controller.preempt(PreemptRequest.model_validate_json(await request.read())))

    return [web.post("/heartbeat", heartbeat), web.post("/preempt", preempt)]
