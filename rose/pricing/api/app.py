"""The application: a path for each answer, in worker threads, and every error as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import duckdb
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rose.errors import UserError
from rose.ledger import access
from rose.pricing.api import allocation, ledgers, metrics, openapi, summary
from rose.pricing.api.guard import Guard, refusal
from rose.pricing.api.ledgers import Ledger
from rose.pricing.api.parameters import AllocationQuery, LedgerQuery, PeriodQuery, RequestError, parsed
from rose.pricing.api.work import Limits, Work
from rose.pricing.spend.question import QuestionError

#: For so long a scraper gets figures that are being made anew.
_STALE_S = 600.0
#: Made of the ledgers, the parameters, the time and the most rows that the answer may have.
Make = Callable[[Sequence[Ledger], Any, int, int], dict[str, Any]]


def trust(served: Sequence[Ledger], asked: LedgerQuery, now_ns: int, rows_max: int) -> dict[str, Any]:
    """Whether each ledger is sound, up to when it was verified, and what is wrong."""
    return {"code": 200, "data": [ledger.trust() for ledger in ledgers.chosen(served, asked.ledger)]}


_ANSWERS: dict[str, tuple[str, type[BaseModel], Make]] = {
    "/allocation": ("What a period cost, divided by team, run, task ...", AllocationQuery, allocation.answer),
    "/summary": ("The figures of a period that are looked at every morning.", PeriodQuery, summary.summary),
    "/runs": ("The runs of a period and what each cost in it.", PeriodQuery, summary.runs),
    "/trust": ("Whether the ledgers are sound, and up to when they were verified.", LedgerQuery, trust),
}
_OTHERS: dict[str, tuple[str, type[BaseModel] | None]] = {
    "/metrics": ("This month's figures for Prometheus.", None),
    "/healthz": ("Whether the server answers; it wants no token.", None),
    "/openapi.json": ("This description.", None),
}


def application(
    served: Sequence[Ledger],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    clock: ledgers.Clock = ledgers.now,
) -> Starlette:
    """The ASGI application of these ledgers; `clock` gives UTC nanoseconds, for windows such as `today`."""
    limits = limits or Limits()
    work = Work(limits)
    described = openapi.document(
        version("rose-serving"), {path: (about, query) for path, (about, query, _) in _ANSWERS.items()} | _OTHERS
    )

    async def answer(request: Request, query: type[BaseModel], make: Make) -> Response:
        path, asked, now_ns = request.scope["path"], parsed(query, request.query_params.multi_items()), clock()
        chosen = ledgers.chosen(served, getattr(asked, "ledger", None))
        marks = await asyncio.to_thread(_marks, chosen)
        made = await work.answer(
            (path, asked.model_dump_json(), now_ns, marks), partial(make, chosen, asked, now_ns, limits.rows)
        )
        await asyncio.to_thread(_log, chosen, f"api {path} {asked.model_dump_json(exclude_defaults=True)}")
        return JSONResponse(made)

    async def scrape(request: Request) -> Response:
        # A scraper does not wait for long, and the figures say when they were made.
        text = await work.answer("/metrics", lambda: metrics.text(served, clock()), _STALE_S)
        return Response(text, headers={"Content-Type": metrics.CONTENT_TYPE})

    async def health(request: Request) -> Response:
        return JSONResponse({"code": 200, "data": "ok"})

    async def describe(request: Request) -> Response:
        return JSONResponse(described)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        work.close()

    routes = [
        *(
            Route(path, partial(answer, query=query, make=make), methods=["GET"])
            for path, (_, query, make) in _ANSWERS.items()
        ),
        *(Route(path, made, methods=["GET"]) for path, made in zip(_OTHERS, (scrape, health, describe), strict=True)),
    ]
    parameters = {
        field.alias or name for _, query, _ in _ANSWERS.values() for name, field in query.model_fields.items()
    }
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, token=token, parameters=parameters)],
        exception_handlers={
            UserError: _refused,
            duckdb.Error: _unreadable,
            OSError: _unreadable,
            HTTPException: _refused_by_http,
            Exception: _failed,
        },
    )


def _marks(chosen: Sequence[Ledger]) -> tuple[tuple[str, str], ...]:
    """Read before an answer is made: an event that comes meanwhile can make it newer, never older."""
    return tuple((ledger.name, ledger.mark) for ledger in chosen)


def _log(chosen: Sequence[Ledger], asked: str) -> None:
    """An event in the access log of each ledger whose rules ask for one."""
    for ledger in chosen:
        with access.logged(ledger.root, "report", asked):
            pass


def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        headers = {"Retry-After": "5"} if error.status in (429, 504) else None
        return refusal(error.status, str(error), headers)
    # What the ledger or its prices lack is no fault of the request.
    return refusal(400 if isinstance(error, QuestionError) else 503, str(error))


def _unreadable(request: Request, error: Exception) -> Response:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return refusal(503, f"the ledger cannot be read: {text}; `rose ledger verify` names what is damaged")


def _refused_by_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ", ".join((*_ANSWERS, *_OTHERS))
    texts = {404: f"there is no {request.scope['path']}; there is {known}", 405: "only GET is answered"}
    return refusal(error.status_code, texts.get(error.status_code, error.detail), dict(error.headers or {}))


def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, "the server failed; its log says where")
