"""What the screens read: runs, named queries, charges and reports, kept until the ledger gains an event.

Each query opens the catalog read-only and closes it again, so a page never stands in a writer's or a compaction's way.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import duckdb
import polars as pl
import streamlit as st
from polars import selectors

import dashboard
import sql
from dashboard.link import ALL, FULLY_LOADED, NEWEST, Link
from rose.clock import utc_us
from rose.errors import UserError
from rose.ledger import catalog, verified, verify
from rose.ledger.examine import Seen
from rose.ledger.reading import named
from rose.pricing import charges
from rose.pricing.answers import changes
from rose.pricing.answers.changes import Changes
from rose.pricing.closing import bill as bills
from rose.pricing.closing import charge_algebra, records, store
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.closing.period import NS_PER_DAY, Period, month_at, nanoseconds
from rose.pricing.closing.records import Posting
from rose.pricing.figures import Stamp
from rose.pricing.money import NothingChargedError
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import set_variables
from rose.pricing.run import heard
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.spend import saved as savings
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.cost import tags_of
from rose.pricing.spend.saved import Saved
from rose.pricing.watch import budget
from rose.pricing.watch.budget import TeamBudget

T = TypeVar("T")

#: Cached answers are dropped after this long; a new event drops them at once.
TTL_S = 600
#: A changed file is found out after so many seconds; new files at once.
CHECKED_S = 10
#: Rows of a named query that a screen shows.
ROWS_MAX = 1000
#: What rollouts cost: their time, and what exists for rollouts only.
ROLLOUT_BUCKETS = ("rollout", "sync", "activation", "transfer")
#: The share of serving requests that should keep their latency budgets.
SERVING_TARGET = Fraction(99, 100)
#: The column of the charges that sums to the bill, by view.
_AMOUNT = {False: "cost_nano", True: "loaded_nano"}
#: Tags that name who pays.
_TEAM_TAGS = ("team", "serving_team")
_NO_PRICE_BOOK = (
    "there is no price book, so nothing can be priced. `rose price FILE --adopt` puts one on record for the ledger; or "
    f"start the dashboard with {choice.VARIABLE}=FILE, or for a look at made-up prices with {choice.VARIABLE}=example."
)
#: The newest state of each ledger of which anything was cached.
_newest: dict[Path, str] = {}
_newest_lock = threading.Lock()


class ReadError(UserError):
    """The ledger could not be read; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Priced(Generic[T]):
    """What the pricing layer made of the ledger, or why it made nothing."""

    value: T | None
    error: str | None


class Window(NamedTuple):
    """[from_ns, to_ns), UTC nanoseconds since the epoch."""

    from_ns: int
    to_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the ledger. `provenances` are all that its events carry; more than one means no figure is given."""

    run_id: str
    #: The run that its devices and their requests are of: the fleet's where several RL runs share one.
    fleet_run_id: str
    name: str
    #: `running`, `ended` or `failed`.
    status: str
    reason: str | None
    provenances: list[str]
    started_at: datetime | None
    ended_at: datetime | None
    last_event_at: datetime
    #: When it or its fleet was last heard of.
    heard_at: datetime
    trace: str | None
    trace_keep_share: float | None
    trace_length_scale: float | None
    trace_output_length_scale: float | None
    trace_time_scale: float | None
    #: Seconds of silence after which it expires; None where it does not say.
    expires_s: float | None
    tags_json: str

    @property
    def is_of_fleet(self) -> bool:
        """Whether it is a fleet's own, which has all that RL runs share."""
        return self.run_id == self.fleet_run_id

    @property
    def tags(self) -> dict[str, str | None]:
        """Tags that the run began with."""
        return tags_of(self.tags_json)

    @property
    def going_on(self) -> bool:
        """Whether it has no end, and was heard of lately as far as can be told."""
        heard_us = nanoseconds(self.heard_at) // 1000
        return self.status == "running" and not any(
            heard.silent(
                status=self.status,
                provenance=provenance,
                heard_us=heard_us,
                expires_s=self.expires_s,
                now_us=utc_us(),
            )
            for provenance in self.provenances
        )

    @property
    def whole(self) -> Window:
        """From the begin of the run to its end, or to its last event."""
        begin, end = self.started_at or self.last_event_at, self.ended_at or self.last_event_at
        return Window(nanoseconds(begin), max(nanoseconds(end), nanoseconds(begin)) + 10**9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Names the ledger, the period and the other choices of a bill."""

    ledger: Path
    period: Period
    book: PriceBook
    provenance: str

    @property
    def key(self) -> tuple[object, ...]:
        """Names it for a cache, with all it depends on beside the ledger."""
        return self.period, *book_key(self.book), self.provenance, frozen(self.ledger)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Charges of a period by view and team: `frame` has `amount_nano` of the view, and `rollout` (Boolean)."""

    period: Period
    frame: pl.DataFrame

    @property
    def rollout(self) -> pl.DataFrame:
        """The charges that are for rollouts."""
        return self.frame.filter("rollout")

    @property
    def rollout_nano(self) -> int:
        return int(self.rollout["amount_nano"].sum())

    def by_day(self) -> pl.DataFrame:
        """Nano-dollars by UTC `day`: columns `rollouts` and `all else`; 0 where a day between has none."""
        amount = pl.col("amount_nano")
        summed = (
            self.frame.group_by(day=pl.col("hour").dt.date())
            .agg(rollouts=amount.filter("rollout").sum(), rest=amount.filter(~pl.col("rollout")).sum())
            .rename({"rest": "all else"})
            .sort("day")
        )
        if summed.is_empty():
            return summed
        days = pl.DataFrame({"day": pl.date_range(summed["day"][0], summed["day"][-1], eager=True)})
        return days.join(summed, "day", "left").fill_null(0).sort("day")


# Reading


def root() -> Path:
    """The ledger to show: the folder in ROSE_LEDGER, else as `ledger_to_show` finds it. Raises NoLedgerError."""
    path = os.environ.get("ROSE_LEDGER")
    return dashboard.ledger_to_show(Path(path) if path else None)


def runs(ledger: Path, run_id: str = "") -> list[Run]:
    """The newest runs, newest first, and the one of that id, however old. Raises ReadError or LedgerError."""
    return [Run(**row) for row in rows(ledger, "dashboard/runs", run_id=run_id).drop("runs").to_dicts()]


def run_count(ledger: Path) -> int:
    """How many runs there are, with those that `runs` leaves out. Raises ReadError or LedgerError."""
    counted = rows(ledger, "dashboard/runs", run_id="")
    return int(counted["runs"][0]) if counted.height else 0


def span(ledger: Path) -> Period | None:
    """The whole UTC days in which devices were there; None where none ever was. Raises ReadError or LedgerError."""
    ((from_ns, to_ns),) = rows(ledger, "dashboard/span").iter_rows()
    if from_ns is None or to_ns is None:
        return None
    days = from_ns // NS_PER_DAY, max(to_ns - 1, from_ns) // NS_PER_DAY + 1
    return Period(days[0] * NS_PER_DAY, days[1] * NS_PER_DAY)


def teams(ledger: Path, listed: list[Run]) -> list[str]:
    """The teams that runs and the price book name, and the rest as `unallocated`."""
    found = {value for run in listed for name in _TEAM_TAGS if (value := run.tags.get(name))}
    book = price_book(ledger).value
    found |= {tag.tags["team"] for tag in book.device_tag if "team" in tag.tags} if book is not None else set()
    return [*sorted(found), UNALLOCATED]


def rows(ledger: Path, query: str, **variables: object) -> pl.DataFrame:
    """The rows of `sql/<query>.sql`. Raises ReadError or LedgerError."""
    return _read(str(ledger), query, tuple(sorted(variables.items())), _current(ledger))


@st.cache_data(ttl=TTL_S, max_entries=64, show_spinner=False)
def _read(ledger: str, query: str, variables: tuple[tuple[str, object], ...], mark: str) -> pl.DataFrame:
    """`mark` is part of the key only: an event that arrives meanwhile can make the rows newer, never older."""
    with closing(catalog.connect(ledger)) as connection:
        try:
            set_variables(connection, period_end_ns=time.time_ns(), **dict(variables))
            frame: pl.DataFrame = connection.sql(sql.read(f"{query}.sql")).pl()
            # DuckDB counts and sums whole numbers as HUGEINT, which comes out as a decimal.
            return frame.with_columns(selectors.decimal().cast(pl.Int64))
        except duckdb.CatalogException as error:
            raise ReadError(
                f"A view of the ledger is missing, or lacks a column ({error}). Another version of ROSE wrote its "
                "catalog; any writer of this version repairs it when it opens the ledger."
            ) from error
        except duckdb.Error as error:
            raise ReadError(
                f"The ledger cannot be read: {error}. `rose ledger verify` names what is damaged."
            ) from error


def named_rows(ledger: Path, query: str, columns: Sequence[str] = (), **variables: object) -> Priced[pl.DataFrame]:
    """The first `ROWS_MAX` rows of a query that `rose query` has, all or some of its columns.

    Columns of nanoseconds, `_ns`, come in milliseconds or seconds, and say so.
    """

    def read() -> pl.DataFrame:
        text = {name: str(value) for name, value in variables.items() if value is not None}
        wanted = named.load(query)
        result = named.run(ledger, wanted, named.values(wanted, text, now=datetime.now(UTC)), limit=ROWS_MAX)
        cells = [[_plain(cell) for cell in row] for row in result.rows]
        frame = pl.DataFrame(cells, schema=result.columns, orient="row", infer_schema_length=None, strict=False)
        return _timed(frame.select(columns or result.columns))

    return kept(read, ledger, "named", query, tuple(columns), sorted(variables.items()))


def _plain(cell: Any) -> Any:
    """A value that a screen's table has a type for."""
    if isinstance(cell, Decimal):
        return float(cell)
    return cell if cell is None or isinstance(cell, str | bool | int | float | datetime) else str(cell)


def _timed(frame: pl.DataFrame) -> pl.DataFrame:
    """Nanosecond columns as milliseconds, or as seconds where one of them is ten seconds or more."""
    for name in [name for name in frame.columns if name.endswith("_ns") and frame[name].dtype.is_numeric()]:
        longest = frame[name].cast(pl.Float64).abs().max()
        size, unit = (1e9, "s") if isinstance(longest, float) and longest >= 1e10 else (1e6, "ms")
        value = (pl.col(name) / size).round(3).alias(f"{name.removesuffix('_ns')} ({unit})")
        frame = frame.with_columns(value).select(
            [value.meta.output_name() if column == name else column for column in frame.columns]
        )
    return frame


# Caches


def mark(ledger: Path) -> str:
    """Names the newest segment of every writer: it changes exactly when the ledger gains events."""
    heads = sorted((ledger / "heads").glob("[!.]*.json"))
    return "\n".join(f"{head.name} {head.read_text(encoding='utf-8')}" for head in heads)


def _current(ledger: Path) -> str:
    """`mark`, once all that was cached of an older state is dropped: a ledger only grows, so nobody asks for it again.

    A server shows one ledger; where several are read, a new event in one costs the others a second reading.
    """
    with _newest_lock:
        now = mark(ledger)
        if _newest.get(ledger, now) != now:
            _read.clear()
            _keep.clear()
        _newest[ledger] = now
    return now


def kept(make: Callable[[], T], ledger: Path, *key: object) -> Priced[T]:
    """What `make` returns, or the message of the error it raises for its user; `key` names it and all it depends on.

    It is made once for all sessions and never changes, until the ledger gains an event.
    """
    answer: Priced[T] = _keep((str(ledger), _current(ledger), *map(repr, key)), make)
    return answer


# What begins with an underscore is no part of the key. Bills of a large fleet are among what is kept: few fit.
@st.cache_resource(ttl=TTL_S, max_entries=24, show_spinner=False)
def _keep(key: tuple[str, ...], _make: Callable[[], T]) -> Priced[T]:
    return attempt(_make)


def attempt(make: Callable[[], T]) -> Priced[T]:
    """What `make` returns, or the message of the error that it raises for its user."""
    try:
        return Priced(make(), None)
    except (UserError, duckdb.Error) as error:
        return Priced(None, str(error))


def problems(ledger: Path) -> list[str]:
    """What is wrong with the ledger; empty where it is sound. Reads new and changed files, at most each CHECKED_S.

    Raises LedgerError.
    """
    return _problems(str(ledger), mark(ledger))


@st.cache_data(ttl=CHECKED_S, max_entries=16, show_spinner=False)
def _problems(ledger: str, mark: str) -> list[str]:
    return verify.verify(ledger, seen=seen(ledger)).doubts


@st.cache_resource(show_spinner=False)
def seen(ledger: str) -> Seen:
    """What was verified, once for all sessions: what the last verification left, and what changed since."""
    return verified.load(ledger)


# Prices


def price_book(ledger: Path, run: Run | None = None, period: Period | None = None) -> Priced[PriceBook]:
    """The price book of a run, or of the runs of a period, by the rule of every command; or why there is none.

    Prices are never from a cache: they may be edited while pages are open.
    """
    run_id = None if run is None else run.run_id
    from_ns, to_ns = (None, None) if period is None else (period.from_ns, period.to_ns)
    own = kept(lambda: choice.own_books(ledger, run_id, from_ns, to_ns), ledger, "own books", run_id, from_ns, to_ns)
    if own.value is None:
        return Priced(None, own.error)
    try:
        return Priced(choice.choose(ledger, run_id=run_id, from_ns=from_ns, to_ns=to_ns, own=own.value), None)
    except choice.NoPriceBookError:
        return Priced(None, _NO_PRICE_BOOK)
    except UserError as error:
        return Priced(None, str(error))


def book_key(book: PriceBook) -> tuple[str, str]:
    """Names a price book and the rule it was chosen by, for caches."""
    return book.sha256, book.chosen


def of_run(ledger: Path, run: Run, make: Callable[[PricedRun], T]) -> Priced[tuple[T, Stamp]]:
    """What `make`, a function of a module, makes of a run at its price book's prices, or why there is nothing."""
    chosen = price_book(ledger, run)
    if (book := chosen.value) is None:
        return Priced(None, chosen.error)

    def build() -> tuple[T, Stamp]:
        with priced(ledger, run.run_id, book, seen=seen(str(ledger))) as priced_run:
            return make(priced_run), priced_run.stamp

    return kept(build, ledger, make.__module__, make.__qualname__, run.run_id, *book_key(book))


def period(ledger: Path, chosen: Link) -> Period | None:
    """The period of the bar; None where no device ever was there. Raises PriceBookError, LedgerError."""
    days = span(ledger)
    if days is None:
        return None
    match chosen.period:
        case text if text == NEWEST:
            return month_at(days.to_ns - 1)
        case text if text == ALL:
            return days
        case text:
            return Calendar().period(text, utc_us() * 1000)


def period_before(now: Period) -> Period:
    """The month before a month; else as long a time just before."""
    if now == month_at(now.from_ns):
        return month_at(now.from_ns - 1)
    return Period(2 * now.from_ns - now.to_ns, now.from_ns)


def months(days: Period) -> list[Period]:
    """The months of a period and the current one, newest first."""
    listed = [month_at(days.from_ns)]
    while listed[-1].to_ns < days.to_ns:
        listed.append(month_at(listed[-1].to_ns))
    return sorted({*listed, month_at(utc_us() * 1000)}, reverse=True)


def provenances(ledger: Path, within: Period) -> list[str]:
    """What the runs and the closes of a period are: live, replay or simulated. Raises ReadError."""

    answer = kept(lambda: bills.provenances(ledger, within), ledger, "provenances", within)
    if answer.value is None:
        raise ReadError(answer.error)
    return answer.value


def bill(scope: Scope) -> Priced[Bill]:
    """The bill of a period: closed hours as they were closed and corrected, open ones at the book's prices."""
    return kept(
        lambda: bills.bill(
            scope.ledger,
            scope.period,
            scope.book,
            provenance=scope.provenance,
            seen=seen(str(scope.ledger)),
        ),
        scope.ledger,
        "bill",
        *scope.key,
    )


def spent(scope: Scope, billed: Bill, part: Period, chosen: Link) -> Spent:
    """The charges of a part of a bill by what the bar chooses: view and team."""
    loaded = chosen.view == FULLY_LOADED
    frame = _loaded(replace(scope, period=billed.period), billed) if loaded else billed.frame
    rollout = pl.col("work") == "rollout" if loaded else pl.col("bucket").is_in(ROLLOUT_BUCKETS)
    frame = charge_algebra.within(frame, part)
    if chosen.team is not None:
        frame = frame.filter(pl.col("team") == chosen.team)
    return Spent(period=part, frame=frame.with_columns(amount_nano=pl.col(_AMOUNT[loaded]), rollout=rollout))


def _loaded(scope: Scope, billed: Bill) -> pl.DataFrame:
    answer = kept(lambda: charges.fully_load(billed.frame), scope.ledger, "loaded", *scope.key)
    assert answer.value is not None, answer.error
    return answer.value


def bill_with_history(scope: Scope) -> Priced[Bill]:
    """The bill of a period with the period before; of the period alone where earlier hours cannot be priced."""
    whole = bill(replace(scope, period=Period(period_before(scope.period).from_ns, scope.period.to_ns)))
    return bill(scope) if whole.value is None else whole


def harvest(frame: pl.DataFrame) -> Fraction | None:
    """The share of the time that serving left unused which rollouts took; None where serving left none.

    Of serving devices: rollout over rollout, headroom and idle, as `rose query harvest_share_by_day` has it.
    """
    pools = charge_algebra.drill(frame.filter(kind="capacity"), ("pool", "bucket"))
    ns = {row["bucket"]: int(row["ns"]) for row in pools if row["pool"] == "serving"}
    unused_ns = sum(ns.get(bucket, 0) for bucket in ("rollout", "headroom", "idle"))
    return Fraction(ns.get("rollout", 0), unused_ns) if unused_ns else None


def changed(scope: Scope, billed: Bill, before: Spent, now: Spent, chosen: Link) -> Priced[Changes]:
    """What drove the change of what is chosen from the period before, by team; amortized."""

    def compare() -> Changes:
        stamps = [replace(billed.stamp, from_ns=part.period.from_ns, to_ns=part.period.to_ns) for part in (before, now)]
        was, is_now = (changes.side(part.frame, "team") for part in (before, now))
        return changes.changes(was, is_now, by="team", before_stamp=stamps[0], stamp=stamps[1])

    return kept(compare, scope.ledger, "changed", before.period, chosen.team, *scope.key)


def budgets(scope: Scope) -> Priced[list[TeamBudget]]:
    """Budgets of the month in which the period ends, beside what was spent; empty where none is set.

    A forecast holds for an hour at most.
    """
    month = month_at(scope.period.to_ns - 1)

    def compare() -> list[TeamBudget]:
        if not budget.budgets(scope.ledger, month):
            return []
        return budget.show(scope.ledger, month, scope.book, provenance=scope.provenance)

    return kept(compare, scope.ledger, "budgets", *scope.key, f"{datetime.now(UTC):%Y-%m-%dT%H}")


def not_closed(ledger: Path, provenance: str) -> list[Period]:
    """Months that are over, have charges and are not closed whole, oldest first."""
    days, posted = span(ledger), closes(ledger).value
    if days is None or posted is None:
        return []
    closed = [postings[0].period for postings in posted.values() if postings[0].provenance == provenance]
    now_ns = utc_us() * 1000
    past = [month for month in months(days) if month.to_ns <= now_ns]
    return sorted(month for month in past if month.without(closed) and provenance in provenances(ledger, month))


def saved(scope: Scope) -> Priced[Saved | None]:
    """What borrowing saved in the runs that ended in the period or go on in it; None where no run counts."""

    def sum_up() -> Saved | None:
        try:
            return savings.saved(scope.ledger, scope.period, provenance=scope.provenance, seen=seen(str(scope.ledger)))
        except NothingChargedError:
            return None

    return kept(sum_up, scope.ledger, "saved", *scope.key)


def closes(ledger: Path) -> Priced[dict[str, list[Posting]]]:
    """Every close with its corrections, as the ledger's events say."""
    return kept(lambda: records.postings(ledger), ledger, "closes")


def frozen(ledger: Path) -> tuple[tuple[str, int, int], ...]:
    """Names a state of the closes' files: a file that was touched is read, and found out, again."""
    home = ledger / store.FOLDER
    files = sorted(path for path in home.rglob("*") if path.is_file()) if home.exists() else []
    return tuple((str(path.relative_to(home)), (stat := path.stat()).st_mtime_ns, stat.st_size) for path in files)
