"""The data of the pages, cached until the ledger gains an event. Each query opens its own connection."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb
import polars as pl
import streamlit as st
from polars import selectors

import dashboard
import sql
from dashboard.link import ALL, FULLY_LOADED, NEWEST, Link
from rose.clock import utc_us
from rose.errors import UserError
from rose.ledger import verified
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.ledger.reading import named
from rose.pricing import charges
from rose.pricing.answers import changes
from rose.pricing.answers.changes import Changes
from rose.pricing.charges.allocation import ROLLOUT_BUCKETS
from rose.pricing.charges.pricing import refuse_archived_since
from rose.pricing.closing import bill as bills
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.closing.store import Posting
from rose.pricing.figures import Stamp
from rose.pricing.money import NothingChargedError, PricingError
from rose.pricing.period import NS_PER_DAY, Period, month_at, nanoseconds, period_before
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import set_variables
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.spend import saved as savings
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.cost import tags_of
from rose.pricing.spend.saved import Saved
from rose.pricing.stats.verdict import Promise
from rose.pricing.watch import budget
from rose.pricing.watch.budget import Expected, TeamBudget

T = TypeVar("T")

TTL_S = 600  # Cached answers live this long at most; a new event drops them at once.
CHECKED_S = 10  # Seconds until a changed file is noticed; a new file is noticed at once.
ROWS_MAX = 1000
UNKNOWN_S, LEAST_S = 86_400, 300  #: Timeout without a known expiry, and the shortest one: long steps record nothing.
SERVING_TARGET = Fraction(99, 100)
_TEAM_TAGS = ("team", "serving_team")
_UNITS = ((86_400, "days"), (3600, "h"), (10, "s"))
_NO_PRICE_BOOK = (
    "No price book: nothing can be priced. `rose price FILE --adopt` records one in the ledger. Or start the dashboard "
    f"with {pricebook.VARIABLE}=FILE, or with {pricebook.VARIABLE}=example for example prices."
)
_DAMAGED = (
    "A file of the ledger is damaged or missing, so its figures cannot be read. `rose ledger verify` names the file: "
    "put it back from a copy, or move it out of the ledger."
)
_newest: dict[Path, str] = {}  # Last cached state of each ledger.
_newest_lock = threading.Lock()


class ReadError(UserError):
    """The page has no figures. The message says what the reader can do."""


class Window(NamedTuple):
    """The time [from_ns, to_ns), in UTC nanoseconds since the epoch."""

    from_ns: int
    to_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run. A run with several `provenances` has no figures."""

    run_id: str
    fleet_run_id: str  # The run that owns its devices and their requests.
    name: str
    status: str
    reason: str | None
    provenances: list[str]
    started_at: datetime | None
    ended_at: datetime | None
    last_event_at: datetime
    heard_at: datetime  # Newest event of the run or its fleet.
    judged: bool  # Whether an answer of the run was judged.
    trace: str | None
    trace_keep_share: float | None
    trace_length_scale: float | None
    trace_output_length_scale: float | None
    trace_time_scale: float | None
    expires_s: float | None  # Seconds of silence until the run expires; None: unknown.
    tags_json: str
    runs: int  # How many runs the ledger has.

    @property
    def tags(self) -> dict[str, str | None]:
        return tags_of(self.tags_json)

    @property
    def going_on(self) -> bool:
        """Return whether the run still runs. A live run without a recent event counts as stopped."""
        allowed_s = UNKNOWN_S if self.expires_s is None else max(self.expires_s, LEAST_S)
        silent_us = utc_us() - nanoseconds(self.heard_at) // 1000
        return self.status == "running" and ("live" not in self.provenances or silent_us <= allowed_s * 1_000_000)

    @property
    def whole(self) -> Window:
        begin, end = self.started_at or self.last_event_at, self.ended_at or self.last_event_at
        return Window(nanoseconds(begin), max(nanoseconds(end), nanoseconds(begin)) + 10**9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    ledger: Ledger
    period: Period
    book: PriceBook
    provenance: str

    @property
    def key(self) -> tuple[object, ...]:
        return self.period, *book_key(self.book), self.provenance, frozen(self.ledger)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """The charges of a period. In `frame`, `amount_nano` follows the chosen view; `rollout` marks rollout work."""

    period: Period
    frame: pl.DataFrame

    @property
    def rollout(self) -> pl.DataFrame:
        return self.frame.filter("rollout")

    @property
    def rollout_nano(self) -> int:
        return int(self.rollout["amount_nano"].sum())

    def by_day(self) -> pl.DataFrame:
        """Return nano-dollars by UTC `day`, in the columns `rollouts` and `all else`. A day without charges has 0."""
        amount = pl.col("amount_nano")
        sums = {"rollouts": amount.filter("rollout").sum(), "all else": amount.filter(~pl.col("rollout")).sum()}
        summed = self.frame.group_by(day=pl.col("hour").dt.date()).agg(**sums).sort("day")
        if summed.is_empty():
            return summed
        days = pl.DataFrame({"day": pl.date_range(summed["day"][0], summed["day"][-1], eager=True)})
        return days.join(summed, "day", "left").fill_null(0).sort("day")


def opened() -> Ledger:
    """Return the ledger that ROSE_LEDGER names, or else the default ledger (`ledger_to_show`). Raises LedgerError."""
    path = os.environ.get("ROSE_LEDGER")
    return _opened(str(dashboard.ledger_to_show(Path(path) if path else None)))


@st.cache_resource(show_spinner=False)
def _opened(root: str) -> Ledger:
    ledger = Ledger(root)
    ledger.seen = verified.load(ledger.folder)
    return ledger


def runs(ledger: Ledger, run_id: str = "") -> list[Run]:
    """Return the newest runs and, however old, the run `run_id`. Newest first. Raises ReadError or LedgerError."""
    return [Run(**row) for row in rows(ledger, "dashboard/runs", run_id=run_id).to_dicts()]


def span(ledger: Ledger) -> Period | None:
    """Return the UTC days in which the ledger has devices, or None. Raises ReadError or LedgerError."""
    ((from_ns, to_ns),) = rows(ledger, "dashboard/span").iter_rows()
    if from_ns is None or to_ns is None:
        return None
    days = from_ns // NS_PER_DAY, max(to_ns - 1, from_ns) // NS_PER_DAY + 1
    return Period(days[0] * NS_PER_DAY, days[1] * NS_PER_DAY)


def teams(ledger: Ledger, listed: list[Run]) -> list[str]:
    names = {value for run in listed for name in _TEAM_TAGS if (value := run.tags.get(name))}
    with suppress(UserError):
        names |= {tag.tags["team"] for tag in price_book(ledger).device_tag if "team" in tag.tags}
    return [*sorted(names), UNALLOCATED]


def rows(ledger: Ledger, query: str, **variables: object) -> pl.DataFrame:
    """Return the rows of `sql/<query>.sql`. Raises ReadError or LedgerError."""
    return _read(str(ledger.folder), query, tuple(sorted(variables.items())), _current(ledger))


@st.cache_data(ttl=TTL_S, max_entries=64, show_spinner=False)
def _read(ledger: str, query: str, variables: tuple[tuple[str, object], ...], mark: str) -> pl.DataFrame:
    """Read rows. `mark` is only a part of the cache key."""
    with closing(catalog.connect(ledger)) as connection:
        try:
            set_variables(connection, period_end_ns=time.time_ns(), **dict(variables))
            frame: pl.DataFrame = connection.sql(sql.read(f"{query}.sql")).pl()
            # DuckDB counts and sums whole numbers as HUGEINT, which comes out as a decimal.
            return frame.with_columns(selectors.decimal().cast(pl.Int64))
        except duckdb.CatalogException as error:
            raise ReadError(
                f"A view of the ledger is missing, or lacks a column ({error}). Another version of ROSE wrote the "
                "ledger's catalog; any writer of this version repairs the catalog when it opens the ledger."
            ) from error
        except duckdb.Error as error:
            raise ReadError(why(error)) from error


def named_rows(ledger: Ledger, query: str, columns: str = "", **variables: object) -> pl.DataFrame:
    """Return up to ROWS_MAX rows of a named query. Columns `..._ns` become days, h, s or ms. Raises UserError."""

    def read() -> pl.DataFrame:
        text = {name: str(value) for name, value in variables.items() if value is not None}
        loaded = named.load(query)
        result = named.run(ledger, loaded, named.values(loaded, text, now=datetime.now(UTC)), limit=ROWS_MAX)
        cells = [[_plain(cell) for cell in row] for row in result.rows]
        frame = pl.DataFrame(cells, schema=result.columns, orient="row", infer_schema_length=None, strict=False)
        return _in_readable_units(frame.select(columns.split() or result.columns))

    return kept(read, ledger, "named", query, columns, sorted(variables.items()))


def _plain(cell: Any) -> Any:
    if isinstance(cell, Decimal):
        return float(cell)
    return cell if cell is None or isinstance(cell, str | bool | int | float | datetime) else str(cell)


def _in_readable_units(frame: pl.DataFrame) -> pl.DataFrame:
    for name in [name for name in frame.columns if name.endswith("_ns") and frame[name].dtype.is_numeric()]:
        longest = frame[name].cast(pl.Float64).abs().max()
        longest_s = longest / 1e9 if isinstance(longest, float) else 0
        size, unit = next((one for one in _UNITS if longest_s >= one[0]), (0.001, "ms"))
        value = (pl.col(name) / size / 1e9).round(3)
        frame = frame.with_columns(value).rename({name: f"{name.removesuffix('_ns')} ({unit})"})
    return frame


def mark(ledger: Ledger) -> str:
    """Return a text that changes when the ledger gains events."""
    heads = sorted((ledger.folder / "heads").glob("[!.]*.json"))
    return "\n".join(f"{head.name} {head.read_text(encoding='utf-8')}" for head in heads)


def _current(ledger: Ledger) -> str:
    """Return `mark(ledger)`. If the mark has changed, empty the cache first."""
    with _newest_lock:
        now = mark(ledger)
        if _newest.get(ledger.folder, now) != now:
            _read.clear()
            _keep.clear()
        _newest[ledger.folder] = now
    return now


def kept(make: Callable[[], T], ledger: Ledger, *key: object) -> T:
    """Return `make()`, cached under `key` until the ledger gains an event. Raises UserError."""
    value, error = _keep((str(ledger.folder), _current(ledger), *map(repr, key)), make)
    if error is not None:
        raise ReadError(error)
    result: T = value
    return result


# A parameter with an underscore is not in the key. The cache is small because bills of a large fleet are large.
@st.cache_resource(ttl=TTL_S, max_entries=24, show_spinner=False)
def _keep(key: tuple[str, ...], _make: Callable[[], object]) -> tuple[Any, str | None]:
    try:
        return _make(), None
    except (UserError, duckdb.Error) as error:
        return None, why(error)


def why(error: Exception) -> str:
    """Return an error's message. For a damaged or missing file, return `_DAMAGED` instead."""
    cause = error if isinstance(error, duckdb.Error) else error.__cause__
    return _DAMAGED if isinstance(cause, duckdb.IOException | duckdb.InvalidInputException) else str(error)


@st.cache_data(
    ttl=CHECKED_S, max_entries=16, show_spinner=False, hash_funcs={Ledger: lambda own: f"{own.folder} {mark(own)}"}
)
def problems(ledger: Ledger) -> list[str]:
    """Verify new and changed files, at most once in CHECKED_S seconds. Return all problems. Raises LedgerError."""
    return ledger.doubts


def price_book(ledger: Ledger, run: Run | None = None, period: Period | None = None) -> PriceBook:
    """Return the price book that a `rose` command would choose for the run or period. Raises UserError."""
    run_id = None if run is None else run.run_id

    def own_books() -> pricebook.Own:
        with ledger.connect() as connection:
            return pricebook.own_books(connection, run_id, period)

    key = ledger, "own books", run_id, period
    try:
        return pricebook.choose(ledger, run_id=run_id, period=period, own=lambda: kept(own_books, *key))
    except pricebook.NoPriceBookError:
        raise ReadError(_NO_PRICE_BOOK)


def book_key(book: PriceBook) -> tuple[str, str]:
    return book.sha256, book.chosen


def of_run(ledger: Ledger, run: Run, make: Callable[[PricedRun], T]) -> tuple[T, Stamp]:
    """Price a run. Return `make(priced run)` and the run's stamp, cached by the name of `make`. Raises UserError."""
    book = price_book(ledger, run)

    def build() -> tuple[T, Stamp]:
        with priced(ledger, run.run_id, book) as priced_run:
            return make(priced_run), priced_run.stamp

    return kept(build, ledger, make.__module__, make.__qualname__, run.run_id, *book_key(book))


def period(ledger: Ledger, chosen: Link) -> Period | None:
    """Return the chosen period, or None if the ledger has no devices. Raises PricingError or LedgerError."""
    days = span(ledger)
    if days is None or chosen.period == ALL:
        return days
    if chosen.period == NEWEST:
        return month_at(days.to_ns - 1)
    return Calendar().period(chosen.period, utc_us() * 1000)


def months(days: Period) -> list[Period]:
    listed = [month_at(days.from_ns)]
    while listed[-1].to_ns < days.to_ns:
        listed.append(month_at(listed[-1].to_ns))
    return sorted({*listed, month_at(utc_us() * 1000)}, reverse=True)


def provenances(ledger: Ledger, within: Period) -> list[str]:
    """Return the provenances of runs and closes in a period. Raises ReadError."""
    return kept(lambda: bills.provenances(ledger, within), ledger, "provenances", within)


def bill(scope: Scope) -> Bill:
    """Return the bill. Hours in a closed period keep their charges; the book prices other hours. Raises UserError."""
    make = partial(bills.bill, scope.ledger, scope.period, scope.book, provenance=scope.provenance)
    return kept(make, scope.ledger, "bill", *scope.key)


def spent(scope: Scope, billed: Bill, part: Period, chosen: Link) -> Spent:
    """Return a bill's charges in the period `part`, in the chosen view and for the chosen team."""
    if chosen.view == FULLY_LOADED:
        key = replace(scope, period=billed.period).key
        frame = kept(lambda: charges.fully_load(billed.frame), scope.ledger, "loaded", *key)
        amount, rollout = "loaded_nano", pl.col("work") == "rollout"
    else:
        frame, amount, rollout = billed.frame, "cost_nano", pl.col("bucket").is_in(ROLLOUT_BUCKETS)
    frame = frame.filter(charge_algebra.in_period(part))
    if chosen.team is not None:
        frame = frame.filter(pl.col("team") == chosen.team)
    return Spent(period=part, frame=frame.with_columns(amount_nano=pl.col(amount), rollout=rollout))


def bill_with_history(scope: Scope) -> tuple[Bill, str | None]:
    """Return the bill of the period and the period before. If it fails, say why, and return the period's bill alone."""
    try:
        return bill(replace(scope, period=Period(period_before(scope.period).from_ns, scope.period.to_ns))), None
    except UserError as error:
        return bill(scope), str(error)


def promise(requests: pl.DataFrame) -> Promise:
    """Return the number of requests, the number of late requests, and the target share in time. The column `kept`
    counts requests within both latency budgets."""
    count = int(requests["requests"].sum())
    return Promise(late=count - int(requests["kept"].sum()), requests=count, target=SERVING_TARGET)


def harvest(frame: pl.DataFrame, beyond_ns: int = 0) -> Fraction | None:
    """Return the rollouts' share of the time that serving left unused: rollout / (rollout + headroom + idle +
    `beyond_ns`). Return None if serving left no time. `beyond_ns` is how long rollouts delayed serving."""
    serving = frame.filter(kind="capacity", pool="serving")
    ns = dict(serving.group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
    unused_ns = sum(ns.get(bucket, 0) for bucket in ("rollout", "headroom", "idle"))
    unused_ns += min(beyond_ns, ns.get("serving", 0))
    return Fraction(ns.get("rollout", 0), unused_ns) if unused_ns else None


def serving_time(scope: Scope) -> dict[str, int] | None:
    """Return how long rollouts delayed serving in the period (`delayed_ns`), and how long devices were idle while
    leases were withheld (`withheld_idle_ns`). Return None if events since the period's start were archived."""
    try:
        refuse_archived_since(scope.ledger, scope.period.from_ns)
    except PricingError:
        return None
    within = {"from_ns": scope.period.from_ns, "to_ns": scope.period.to_ns}
    return rows(scope.ledger, "dashboard/serving_time", provenance=scope.provenance, **within).row(0, named=True)


def changed(scope: Scope, billed: Bill, before: Spent, now: Spent, chosen: Link) -> Changes:
    """Return the change of amortized cost from `before` to `now`, by team and cause. Raises UserError."""

    def compare() -> Changes:
        stamps = [replace(billed.stamp, from_ns=part.period.from_ns, to_ns=part.period.to_ns) for part in (before, now)]
        was, is_now = (changes.side(part.frame, "team") for part in (before, now))
        return changes.changes(was, is_now, by="team", before_stamp=stamps[0], stamp=stamps[1])

    return kept(compare, scope.ledger, "changed", before.period, chosen.team, *scope.key)


def budgets(scope: Scope) -> list[TeamBudget]:
    """Return the budgets of the month in which the period ends, cached for an hour. Raises UserError."""
    month = month_at(scope.period.to_ns - 1)
    if not kept(lambda: budget.budgets(scope.ledger, month), scope.ledger, "budgets", month):
        return []
    return _watched(scope, budget.show)


def expected(scope: Scope) -> list[Expected]:
    """Return forecasts for the month in which the period ends: the fleet's, then each team's. Raises UserError."""
    return _watched(scope, budget.expected)


def _watched(scope: Scope, ask: Callable[..., list[T]]) -> list[T]:
    month = month_at(scope.period.to_ns - 1)
    answer = partial(ask, scope.ledger, month, scope.book, provenance=scope.provenance)
    return kept(answer, scope.ledger, ask.__qualname__, *scope.key, f"{datetime.now(UTC):%Y-%m-%dT%H}")


def not_closed(ledger: Ledger, provenance: str) -> list[Period]:
    """Return past months that are not fully closed, oldest first. Raises UserError."""
    days = span(ledger)
    try:
        posted = closes(ledger)
    except UserError:  # The page Books shows it.
        return []
    if days is None:
        return []
    closed = [postings[0].period for postings in posted.values() if postings[0].provenance == provenance]
    now_ns = utc_us() * 1000
    past = [month for month in months(days) if month.to_ns <= now_ns]
    return sorted(
        month for month in past if bills.open_parts(month, closed) and provenance in provenances(ledger, month)
    )


def saved(scope: Scope) -> Saved | None:
    """Return the savings of a period, or None without charges. Raises UserError."""

    def sum_up() -> Saved | None:
        try:
            return savings.saved(scope.ledger, scope.period, provenance=scope.provenance)
        except NothingChargedError:
            return None

    return kept(sum_up, scope.ledger, "saved", *scope.key)


def closes(ledger: Ledger) -> dict[str, list[Posting]]:
    return kept(lambda: store.postings(ledger), ledger, "closes")


def frozen(ledger: Ledger) -> tuple[tuple[str, int, int], ...]:
    """Return a cache key that changes when a file of a close changes."""
    home = ledger.folder / store.FOLDER
    files = sorted(path for path in home.rglob("*") if path.is_file())
    return tuple((str(path.relative_to(home)), (stat := path.stat()).st_mtime_ns, stat.st_size) for path in files)
