"""The HTTP paths of a ledger service: segments, their ends, one SELECT, and figures for Prometheus."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rose.ledger.files.layout import LedgerError
from rose.ledger.hosts.receive import SEGMENT_BYTES_MAX
from rose.ledger.hosts.service import BusyError, Caller, DeniedError, LedgerService
from rose.ledger.reading.query import arrow_stream
from rose.tokens import UnknownTokenError

logger = logging.getLogger(__name__)
Endpoint = Callable[[Request], Awaitable[Response]]

PREFIX = "/ledger/"
ARROW = "application/vnd.apache.arrow.stream"
_STATEMENT_BYTES_MAX = 1 << 20


class Select(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sql: str
    limit: Annotated[int, Field(ge=0, le=2**63 - 1)] = 10_000
    timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 30.0
    lossless: bool = False  # Otherwise HUGEINT, the type of a sum of integers, comes as DECIMAL(38, 0).


def routes(service: LedgerService) -> list[Route]:
    async def ends(request: Request) -> Response:
        caller = _caller(service, request)
        writers = request.query_params.getlist("writer") or None
        return JSONResponse(await run_in_threadpool(service.ends, caller, writers))

    async def receive(request: Request) -> Response:
        caller = _caller(service, request)
        content = await _body(request, SEGMENT_BYTES_MAX)
        end = await run_in_threadpool(service.receive, caller, request.path_params["path"], content)
        return JSONResponse(asdict(end))

    async def query(request: Request) -> Response:
        caller = _caller(service, request)
        select = Select.model_validate_json(await _body(request, _STATEMENT_BYTES_MAX))
        table, truncated = await run_in_threadpool(
            service.query, caller, select.sql, select.limit, select.timeout_s, lossless=select.lossless
        )
        return Response(arrow_stream(table), headers={"Content-Type": ARROW, "X-Truncated": str(truncated).lower()})

    async def metrics(request: Request) -> Response:
        text = await run_in_threadpool(service.metrics, _caller(service, request))
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [
        Route(f"{PREFIX}segments", _answered(ends)),
        Route(f"{PREFIX}segments/{{path:path}}", _answered(receive), methods=["PUT"]),
        Route(f"{PREFIX}query", _answered(query), methods=["POST"]),
        Route(f"{PREFIX}metrics", _answered(metrics)),
    ]


def _caller(service: LedgerService, request: Request) -> Caller:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return service.caller(secret if scheme == "Bearer" else "", ":".join(map(str, request.client or ("?",))))


class _TooLongError(LedgerError):
    """The body of a request is too long."""


async def _body(request: Request, bytes_max: int) -> bytes:
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > bytes_max:
            raise _TooLongError(f"the body has more than {bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)


def _answered(endpoint: Endpoint) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ValidationError as error:
            first = error.errors(include_context=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            return _failure(400, f"{where}: {first['msg']}")
        except (LedgerError, UnknownTokenError) as error:
            return _failure(_STATUSES.get(type(error), 400), str(error))
        except OSError as error:
            return _failure(507, f"the ledger's disk refuses it: {error.strerror}")
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.url.path)
            return _failure(500, f"the controller failed: {type(error).__name__}: {error}")

    return answer


_STATUSES = {UnknownTokenError: 401, DeniedError: 403, _TooLongError: 413, BusyError: 503}


def _failure(status: int, error: str) -> Response:
    return JSONResponse({"error": error}, status_code=status)
