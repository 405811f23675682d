"""The application: a path for each answer, in worker threads, and every error as JSON."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any

import duckdb
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from rose.errors import UserError, did_you_mean
from rose.ledger import access
from rose.pricing.api import allocation, ledgers, metrics, summary
from rose.pricing.api.guard import Guard, refusal
from rose.pricing.api.ledgers import Ledger
from rose.pricing.api.parameters import AllocationQuery, LedgerQuery, PeriodQuery, RequestError
from rose.pricing.api.work import Limits, Work
from rose.pricing.spend.question import QuestionError

#: For so long a scraper gets figures that are being made anew.
_STALE_S = 600.0
#: Made of the ledgers, the parameters, the time and the most rows that the answer may have.
Make = Callable[[Sequence[Ledger], Any, int, int], dict[str, Any]]
_QUERIES: dict[str, type[LedgerQuery]] = {
    "/allocation": AllocationQuery,
    "/summary": PeriodQuery,
    "/runs": PeriodQuery,
    "/trust": LedgerQuery,
}
_VALUE_CHARACTERS_MAX = 500


class Error(TypedDict):
    """Every error."""

    code: int
    message: str


class Allocation(TypedDict, total=False):
    """What a part of a window cost. Whole `*_nano` are nano-dollars, `ns` device time; null: not known."""

    name: str
    properties: dict[str, str]
    window: dict[str, str]
    start: str
    end: str
    ledger: str
    provenance: str
    costBasis: str
    currency: str | None
    totalCost: str | None
    total_nano: int | None
    cost_nano: int
    closed_nano: int
    corrections_nano: int
    open_nano: int
    shared_nano: int
    credits_nano: int
    low_nano: int | None
    high_nano: int | None
    ns: int
    tokens: int
    runs: int
    runs_unknown: int


class Allocations(TypedDict):
    """A set of allocations for each ledger, provenance and step, and what must be known of each set."""

    code: int
    data: list[dict[str, Allocation]]
    sets: list[dict[str, Any]]


class Answer(TypedDict):
    """An entry for each ledger and provenance."""

    code: int
    data: list[dict[str, Any]]


_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "The request is refused; the message names the parameter and its value."},
    "5XX": {"model": Error, "description": "A ledger cannot be read, verified or priced (503), or not in time (504)."},
}


def trust(served: Sequence[Ledger], asked: LedgerQuery, now_ns: int, rows_max: int) -> dict[str, Any]:
    """Return whether each ledger is sound, up to when it was verified, and what is wrong."""
    return {"code": 200, "data": [ledger.trust() for ledger in ledgers.chosen(served, asked.ledger)]}


def application(
    served: Sequence[Ledger],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    clock: ledgers.Clock = ledgers.now,
) -> FastAPI:
    """Return the ASGI application of these ledgers; `clock` gives UTC nanoseconds, for windows such as `today`."""
    limits = limits or Limits()
    work = Work(limits)

    async def answer(request: Request, asked: LedgerQuery, make: Make) -> Response:
        path, now_ns, chosen = request.scope["path"], clock(), ledgers.chosen(served, asked.ledger)
        marks = await asyncio.to_thread(_marks, chosen)
        made = await work.answer(
            (path, asked.model_dump_json(), now_ns, marks), partial(make, chosen, asked, now_ns, limits.rows)
        )
        await asyncio.to_thread(_log, chosen, f"api {path} {asked.model_dump_json(exclude_defaults=True)}")
        return JSONResponse(made)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        work.close()

    app = FastAPI(
        title="ROSE: what rollouts cost",
        version=version("rose-serving"),
        # Pages that load programs from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        # The guard asks for the token; this describes it.
        dependencies=[Depends(HTTPBearer(auto_error=False)), Depends(_given_once)],
        responses=_ERRORS,
        exception_handlers={
            RequestValidationError: _wrong_parameter,
            UserError: _refused,
            duckdb.Error: _unreadable,
            OSError: _unreadable,
            HTTPException: _refused_by_http,
            Exception: _failed,
        },
    )
    parameters = {name for query in _QUERIES.values() for name in _names(query)}
    app.add_middleware(Guard, token=token, parameters=parameters)

    @app.get("/allocation", responses={200: {"model": Allocations}})
    async def get_allocation(request: Request, asked: Annotated[AllocationQuery, Query()]) -> Response:
        """What a period cost, divided by team, run, task ..."""
        return await answer(request, asked, allocation.answer)

    @app.get("/summary", responses={200: {"model": Answer}})
    async def get_summary(request: Request, asked: Annotated[PeriodQuery, Query()]) -> Response:
        """The figures of a period that are looked at every morning."""
        return await answer(request, asked, summary.summary)

    @app.get("/runs", responses={200: {"model": Answer}})
    async def get_runs(request: Request, asked: Annotated[PeriodQuery, Query()]) -> Response:
        """The runs of a period and what each cost in it."""
        return await answer(request, asked, summary.runs)

    @app.get("/trust", responses={200: {"model": Answer}})
    async def get_trust(request: Request, asked: Annotated[LedgerQuery, Query()]) -> Response:
        """Whether the ledgers are sound, and up to when they were verified."""
        return await answer(request, asked, trust)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def get_metrics() -> Response:
        """This month's figures for Prometheus."""
        # A scraper does not wait for long, and the figures say when they were made.
        text = await work.answer("/metrics", lambda: metrics.text(served, clock()), _STALE_S)
        return Response(text, headers={"Content-Type": metrics.CONTENT_TYPE})

    @app.get("/healthz")
    async def get_health() -> dict[str, int | str]:
        """Whether the server answers; it wants no token."""
        return {"code": 200, "data": "ok"}

    return app


def _names(query: type[LedgerQuery]) -> set[str]:
    """Return the parameters of a query as requests name them."""
    return {field.alias or name for name, field in query.model_fields.items()}


async def _given_once(request: Request) -> None:
    """Raises RequestError for a parameter that is given twice: FastAPI takes the last."""
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if count > 1:
            raise RequestError(f"parameter {name[:_VALUE_CHARACTERS_MAX]} is given twice; give it once")


def _marks(chosen: Sequence[Ledger]) -> tuple[tuple[str, str], ...]:
    """Read before an answer is made: an event that comes meanwhile can make it newer, never older."""
    return tuple((ledger.name, ledger.mark) for ledger in chosen)


def _log(chosen: Sequence[Ledger], asked: str) -> None:
    """An event in the access log of each ledger whose rules ask for one."""
    for ledger in chosen:
        with access.logged(ledger.root, "report", asked):
            pass


async def _wrong_parameter(request: Request, error: Exception) -> Response:
    """Name the first parameter that is wrong and its value."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    name = str(fault["loc"][1])
    value = request.query_params.get(name, "")[:_VALUE_CHARACTERS_MAX]
    if fault["type"] == "extra_forbidden":
        known = _names(_QUERIES[request.scope["path"]])
        return refusal(400, f"there is no parameter {name[:_VALUE_CHARACTERS_MAX]!r}{did_you_mean(name, known)}")
    text = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    return refusal(400, f"parameter {name} is {value!r}: {text}")


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        headers = {"Retry-After": "5"} if error.status in (429, 504) else None
        return refusal(error.status, str(error), headers)
    # What the ledger or its prices lack is no fault of the request.
    return refusal(400 if isinstance(error, QuestionError) else 503, str(error))


async def _unreadable(request: Request, error: Exception) -> Response:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return refusal(503, f"the ledger cannot be read: {text}; `rose ledger verify` names what is damaged")


async def _refused_by_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ", ".join((*_QUERIES, "/metrics", "/healthz", "/openapi.json"))
    texts = {404: f"there is no {request.scope['path']}; there is {known}", 405: "only GET is answered"}
    return refusal(error.status_code, texts.get(error.status_code, error.detail), dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, "the server failed; its log says where")
