"""The rollout gateway: the controller's HTTP server, which speaks SGLang's `/generate`.

A trainer points at `/runs/ID` as at one SGLang server, once it has opened that run. What happened to a turn is in
`meta_info["rose"]["attempts"]` of the answer. A client that goes away takes its turns with it.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from rose.errors import UserError
from rose.events import Record
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.devices import UnknownDeviceError
from rose.runtime.scheduling.gateway import agents, operations, runs, turns
from rose.runtime.scheduling.gateway.answers import failure
from rose.runtime.scheduling.runs.recorder import LedgerAwayError
from rose.runtime.scheduling.runs.recording import EventRefusedError
from rose.runtime.scheduling.runs.registry import RunRefusedError, UnknownRunError
from rose.runtime.scheduling.runs.state import StateError
from rose.runtime.scheduling.turn_service import KeyReusedError
from rose.runtime.scheduling.workers import UnknownEngineError

#: A prompt of eight million tokens; a longer body is refused.
REQUEST_BYTES_MAX = 64 << 20
#: Connections that may wait to be taken up: the turns of a step come all at once. The kernel has a bound of its own.
BACKLOG = 4096

_STATUSES: dict[type[UserError], int] = {
    UnknownRunError: 404,
    UnknownDeviceError: 404,
    UnknownEngineError: 404,
    RunRefusedError: 409,
    KeyReusedError: 409,
    EventRefusedError: 400,
    LedgerAwayError: 503,
    StateError: 503,
}


class Gateway:
    """`start` binds, `stop` unbinds; the arguments beyond the address are those of `Controller`."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str | None = None,
        policy: str = "rose",
        *,
        model: str | None = None,
        state: Path | None = None,
        record: Record | None = None,
        fleet_run_id: str | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self._host, self._port, self._token = host, port, token
        self.controller = Controller(
            policy, model=model, state=state, record=record, fleet_run_id=fleet_run_id, devices=devices
        )
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        """All paths there are."""
        app = web.Application(middlewares=[self._guard], client_max_size=REQUEST_BYTES_MAX)
        # Those that are asked most come first: they are looked for in this order.
        for part in (turns, agents, runs, operations):
            app.add_routes(part.routes(self.controller))
        return app

    async def start(self) -> None:
        """Bind and serve. Raises OSError if the port is taken."""
        await self.controller.start()
        # A client that goes away takes its turns with it: nobody would read them.
        self._runner = web.AppRunner(
            self.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, backlog=BACKLOG).start()

    async def stop(self) -> None:
        """Answer polls, give up turns, unbind."""
        self.controller.release_polls()
        if self._runner is not None:
            await self._runner.cleanup()
        await self.controller.stop()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self._token is not None and not _same(request.headers.get("Authorization", ""), f"Bearer {self._token}"):
            return failure(401, "send the gateway's token as `Authorization: Bearer ...`")
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except ValidationError as error:
            return failure(400, _explain(error))
        except UserError as error:
            return failure(_STATUSES[type(error)], str(error))


def _explain(error: ValidationError) -> str:
    """Where and what is wrong, without the value: it may be a whole prompt."""
    wrong = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'the body'}: {item['msg']}" for item in wrong)


def _same(given: str, secret: str) -> bool:
    """Equal, in a time that does not tell how far. Headers may hold bytes that are no text, kept as surrogates."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), secret.encode())
