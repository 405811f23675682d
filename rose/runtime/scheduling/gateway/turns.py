"""Turns over HTTP, in the fields of SGLang's `/generate`: whole, or as server-sent events while they are made."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
from aiohttp import web

from rose.clock import monotonic_ns
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.answers import failure
from rose.runtime.scheduling.messages import GenerateRequest
from rose.runtime.scheduling.turn_service import Outcome, so_far
from rose.runtime.scheduling.turns import Turn

#: Turns at once at most; beyond it a caller is told to come back.
TURNS_MAX = 10_000


def routes(controller: Controller) -> list[web.RouteDef]:
    async def generate(request: web.Request) -> web.StreamResponse:
        return await _answer(controller, request)

    return [web.post("/runs/{run_id}/generate", generate), web.post("/generate", _refuse)]


async def _refuse(_request: web.Request) -> web.StreamResponse:
    return failure(404, "turns are made for a run: open one at POST /runs, and send its turns to /runs/RUN_ID/generate")


async def _answer(controller: Controller, request: web.Request) -> web.StreamResponse:
    wanted = GenerateRequest.model_validate_json(await request.read())
    run_id, now_ns = request.match_info["run_id"], monotonic_ns()
    version_min = controller.runs.hear(run_id, now_ns).version_min
    turns = sum(len(load.turns) for load in controller.loads.values())
    if turns >= TURNS_MAX:
        return failure(429, f"{turns} turns wait already; try again later")
    turn = Turn.begin(wanted, now_ns, run_id, version_min)
    load = controller.loads[run_id]
    assert controller.turns is not None
    if wanted.stream:
        return await _stream(request, controller.turns.stream(turn, load))
    outcome = await controller.turns.generate(turn, load)
    return web.Response(body=outcome.body, status=outcome.status, content_type="application/json")


async def _stream(request: web.Request, parts: AsyncIterator[Turn | Outcome]) -> web.StreamResponse:
    """Each event holds all that was made so far, as SGLang's do."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    async for part in parts:
        if not response.prepared:
            # What ends before its first token is answered as if it came whole.
            if isinstance(part, Outcome) and part.status != 200:
                return web.Response(body=part.body, status=part.status, content_type="application/json")
            await response.prepare(request)
        body = part.body if isinstance(part, Outcome) else orjson.dumps(so_far(part))
        await response.write(b"data: " + body + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response
