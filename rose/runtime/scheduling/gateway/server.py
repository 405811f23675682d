"""The HTTP server of the controller. To a trainer, `/runs/ID` looks like one SGLang server."""

import asyncio
import hmac
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Unpack

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rose import tokens
from rose.errors import UserError, did_you_mean
from rose.ledger.address import check_guarded, refusal
from rose.ledger.hosts.routes import PREFIX as LEDGER_PREFIX
from rose.ledger.hosts.routes import routes as ledger_routes
from rose.ledger.hosts.service import LedgerService
from rose.ledger.ledger import Ledger
from rose.runtime.scheduling.controller import Controller, ControllerOptions
from rose.runtime.scheduling.gateway import http_server, paths
from rose.runtime.scheduling.gateway.api_paths import Paths
from rose.runtime.scheduling.gateway.http_server import ClientGoneError, HttpServer
from rose.runtime.scheduling.gateway.origins import FolderOrigins
from rose.runtime.scheduling.gateway.paths import failure
from rose.runtime.scheduling.gateway.service import TOKEN, Service, may_use, token_of
from rose.runtime.scheduling.gateway.texts import Texts
from rose.runtime.scheduling.refusals import RefusedError
from rose.runtime.scheduling.runs.registry import UnknownRunError
from rose.runtime.scheduling.runs.state import StateError
from rose.runtime.scheduling.turns.request import read as read_turn
from rose.tokens import Token
from rose.transfer.errors import ConflictError, TransferError
from rose.transfer.wire.origin_rules import STRICT

logger = logging.getLogger(__name__)

_STATUSES: dict[type[UserError], int] = {TransferError: 400, ConflictError: 409, StateError: 503}

_SHOWN_MAX = 60


class Gateway:
    """The controller with its HTTP server. Raises OpenAddressError, SecretError or TokenError."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str | None = None,
        policy: str = "rose",
        *,
        agent_token: str = "",
        tokens_file: Path | None = None,
        host_tokens: Sequence[Token] = (),
        ledger: Path | None = None,
        checkpoint: Callable[[str], Path] | None = None,
        **options: Unpack[ControllerOptions],
    ) -> None:
        if tokens_file is None or token is not None:
            check_guarded(host, token, "`gateway.token` or `gateway.tokens`")
        self._agent_token = agent_token
        operator = () if token is None else (tokens.of_secret("gateway.token", token, ("admin",)),)
        self._fixed: tuple[Token, ...] = (*operator, *host_tokens)
        self._named = None if tokens_file is None else tokens.Watched(tokens_file, logger.warning)
        self._open = token is None and tokens_file is None
        self._ledger = ledger
        self._ledger_service: LedgerService | None = None
        self.controller = Controller(policy, **options)
        self._texts: dict[str, Texts] = {}
        self._origins: FolderOrigins | None = None
        if checkpoint is not None:
            self._texts = {name: Texts(name, partial(checkpoint, name)) for name in self.controller.models}
            if (state := options.get("state")) is not None:
                self._origins = FolderOrigins(self.controller, state / "origins", host, checkpoint)
        files = options.get("origins", STRICT).files
        self._service = Service(self.controller, self._texts, self._origins, files=files)
        self._apis = Paths(self._service)
        self._application = self.application()
        self._server = HttpServer(self._serve, host, port)

    def application(self) -> Starlette:
        return Starlette(
            routes=[*paths.routes(self.controller), *self._apis.routes(), *self._apis.routes("/runs/{run_id}")],
            exception_handlers=dict.fromkeys((*_REFUSED, HTTPException), self._refuse),
        )

    async def start(self) -> None:
        """Bind the port and serve. Raises OSError, or LedgerError if `ledger` is bad."""
        self._server.bind()
        if self._ledger is not None:
            opened = await asyncio.to_thread(Ledger.create, self._ledger)
            self._ledger_service = await asyncio.to_thread(LedgerService, opened, self._find)
            self._application.router.routes.extend(ledger_routes(self._ledger_service))
        await self.controller.start()
        if self._origins is not None:
            self._origins.restore()
        await self._server.start()

    async def stop(self) -> None:
        self.controller.release_polls()
        await self._server.stop()
        if self._origins is not None:
            await self._origins.close()
        await self.controller.stop()
        if self._ledger_service is not None:
            await asyncio.to_thread(self._ledger_service.close)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if (refused := self._refused(scope)) is not None:
                await refused(scope, receive, send)
            elif paths.is_turn(scope):
                try:
                    await self._answer_turn(scope, receive, send)
                except _REFUSED as error:
                    await (await self._refuse(Request(scope), error))(scope, receive, send)
            else:
                await self._application(scope, receive, send)
        except ClientGoneError:
            pass
        except asyncio.CancelledError:
            if not self._server.stopping:
                raise
            with suppress(RuntimeError):  # A started stream breaks off.
                await failure(503, "the gateway stops: send the request again")(scope, receive, send)

    async def _answer_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `/generate`, the most frequent request, without Starlette's routing."""
        body, run_id = await http_server.read(receive), paths.run_of_turn(scope)
        has_session = any(_header(scope, name.encode()) for name in http_server.SESSIONS)
        if run_id is not None and not has_session and (request := read_turn(body)) is not None:
            await paths.answer_turn(self.controller, request, scope, receive, send)
            return
        scope["path_params"] = {} if run_id is None else {"run_id": run_id}
        answer = await self._apis.generate_from(body, Request(scope))
        await answer(scope, receive, send)

    async def _refuse(self, request: Request, error: Exception) -> Response:
        match error:
            case ValidationError():
                return failure(400, _explain(error), param=".".join(map(str, error.errors()[0]["loc"])) or None)
            case RefusedError():
                return failure(error.status, str(error), error.headers, error.param, error.kind)
            case HTTPException():
                return failure(error.status_code, error.detail, dict(error.headers or {}))
            case UnknownRunError():
                usable = (run for run in self.controller.runs if may_use(token_of(request.scope), run))
                live = [run.run_id for run in usable if run.facts.state != "closed"]
                return failure(404, f"{error}{did_you_mean(error.run_id, live)}")
            case _:
                return failure(_STATUSES[type(error)], str(error))  # type: ignore[index]

    def _refused(self, scope: Scope) -> Response | None:
        host, origin = (_header(scope, name).decode("latin-1") for name in (b"host", b"origin"))
        if (why := refusal(scope["method"], host, origin, has_token=not self._open)) is not None:
            return failure(403, why)
        authorization = _header(scope, b"authorization")
        if scope["path"] in paths.AGENT_PATHS:
            if not self._agent_token:
                return failure(401, "there is no agent token: create it with `rose down --keep-runs` and `rose up`")
            if not hmac.compare_digest(authorization, f"Bearer {self._agent_token}".encode()):
                return failure(401, "only agents may use this path: send the agent token")
        elif not self._open and not scope["path"].startswith(LEDGER_PREFIX):
            needed = _scopes(scope)  # The ledger service checks and logs its own scopes.
            try:
                token = self._find(authorization.decode("latin-1").removeprefix("Bearer "))
            except tokens.UnknownTokenError as error:
                return failure(401, str(error))
            if not any(map(token.may, needed)):
                lacks = " or ".join(needed)
                return failure(403, f"token {token.name!r} lacks the scope {lacks}: the token has {token.described}")
            scope["state"][TOKEN] = token
        return None

    def _find(self, secret: str) -> Token:
        return tokens.find((*self._fixed, *(self._named.tokens if self._named else ())), secret)


def _scopes(scope: Scope) -> tuple[tokens.Scope, ...]:
    path = str(scope["path"])
    if scope["method"] in ("GET", "HEAD"):
        return ("read",) if path == "/metrics" else ("read", "generate", "publish")
    if path.endswith(_GENERATING):
        return ("generate",)
    return ("publish",) if path.startswith("/runs") or not paths.is_own(path) else ("admin",)


_GENERATING = ("/generate", "/completions", "/tokenize", "/detokenize", "/abort_request")
_REFUSED = (ValidationError, UserError)


def _header(scope: Scope, header: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == header), b"")


def _explain(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, item['loc'])) or 'the body'}{_shown(item)}: {item['msg'].removeprefix('Value error, ')}"
        for item in error.errors(include_context=False, include_url=False)
    )


def _shown(item: ErrorDetails) -> str:
    value, where = item["input"], item["loc"]
    if not where or {"input_ids", "token"} & set(where) or item["type"] in ("missing", "extra_forbidden"):
        return ""
    if not (value is None or isinstance(value, (str, int, float))) or len(text := repr(value)) > _SHOWN_MAX:
        return ""
    return f" is {text}"
