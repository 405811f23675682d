"""Turns over HTTP, in the fields of SGLang's `/generate`: whole, or as server-sent events while they are made."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

from rose.clock import monotonic_ns
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.gateway.answers import Client, failure, read
from rose.runtime.scheduling.turns.request import read as read_turn
from rose.runtime.scheduling.turns.turn_service import Outcome, answer_so_far
from rose.runtime.scheduling.turns.turns import Turn

#: Turns of one run at once at most; beyond it its caller is told to come back. All runs together have as many as the
#: process may have connections.
TURNS_MAX = 10_000
_BEFORE, _AFTER = "/runs/", "/generate"
_NO_RUN = "turns are made for a run: open one at POST /runs, and send its turns to /runs/RUN_ID/generate"


def is_turn(scope: Scope) -> bool:
    return scope["method"] == "POST" and str(scope["path"]).endswith(_AFTER)


async def answer(controller: Controller, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one turn. It is asked for more than all else together, and goes through no routing or middleware."""
    run_id = str(scope["path"])[len(_BEFORE) : -len(_AFTER)]
    if not str(scope["path"]).startswith(_BEFORE) or not run_id or "/" in run_id:
        await failure(404, _NO_RUN)(scope, receive, send)
        return
    wanted = read_turn(await read(receive))
    now_ns = monotonic_ns()
    version_min = controller.runs.hear(run_id, now_ns).version_min
    load = controller.loads[run_id]
    turn = Turn.begin(wanted, now_ns, run_id, version_min)
    assert controller.turns is not None
    if len(load.turns) >= TURNS_MAX and not controller.turns.knows(turn):
        full = f"run {run_id!r} has {len(load.turns)} turns, as many as a run may have"
        await failure(429, f"{full}: send more once some of them are answered")(scope, receive, send)
        return
    with Client(scope) as client:
        if wanted.stream:
            await _stream(controller.turns.stream(turn, load), send)
            return
        outcome = await controller.turns.generate(turn, load, client)
    await _whole(outcome, send)


async def _whole(outcome: Outcome, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(outcome.body))]
    await send({"type": "http.response.start", "status": outcome.status, "headers": headers})
    await send({"type": "http.response.body", "body": outcome.body})


async def _stream(parts: AsyncIterator[Turn | Outcome], send: Send) -> None:
    """Each event holds all that was made so far, as SGLang's do."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    begun = False
    async for part in parts:
        if not begun:
            # What ends before its first token is answered as if it came whole.
            if isinstance(part, Outcome) and part.status != 200:
                await _whole(part, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            begun = True
        body = part.body if isinstance(part, Outcome) else answer_so_far(part)
        await send({"type": "http.response.body", "body": b"data: " + body + b"\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
