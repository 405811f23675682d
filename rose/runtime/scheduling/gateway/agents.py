"""What agents ask, with the agent token: heartbeats, and turns to be taken off an engine."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.answers import Client, message, read
from rose.runtime.scheduling.messages import Heartbeat, PreemptRequest

_HEARTBEAT, _PREEMPT = "/heartbeat", "/preempt"
PATHS = frozenset({_HEARTBEAT, _PREEMPT})


def routes(controller: Controller) -> list[Route]:
    async def heartbeat(request: Request) -> Response:
        parsed = Heartbeat.model_validate_json(await read(request.receive))
        with Client(request.scope):
            reply = await controller.heartbeat(parsed)
        return message(reply)

    async def preempt(request: Request) -> Response:
        return message(await controller.preempt(PreemptRequest.model_validate_json(await read(request.receive))))

    return [Route(_HEARTBEAT, heartbeat, methods=["POST"]), Route(_PREEMPT, preempt, methods=["POST"])]
