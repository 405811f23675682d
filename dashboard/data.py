"""What the pages of a run read: rows of the named queries and the cost report, cached until the ledger gains an event.

Each query opens the catalog read-only and closes it again, so a page never stands in a writer's or a compaction's way.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import duckdb
import polars as pl
import streamlit as st
from polars import selectors

import dashboard
import sql
from rose.clock import utc_us
from rose.errors import UserError
from rose.ledger import catalog, verified, verify
from rose.ledger.examine import Seen
from rose.pricing import charges
from rose.pricing.charges import Charges
from rose.pricing.closing.period import Period, nanoseconds
from rose.pricing.document import Report
from rose.pricing.figures import Stamp
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import set_variables
from rose.pricing.run import heard, report
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.spend.cost import UNALLOCATED, tags_of

T = TypeVar("T")

#: What was cached is dropped after this long, whatever happens; a new event drops it at once.
TTL_S = 600
#: The newest state of each ledger of which anything was cached.
_newest: dict[Path, str] = {}
_newest_lock = threading.Lock()
#: A run longer than this is shown by the day, from the roll-ups: a year of it must open as fast as an hour.
LONG = timedelta(days=7)
_DAILY = {
    "dashboard/time_totals",
    "dashboard/fleet_states",
    "dashboard/fleet_latency",
    "dashboard/fleet_preemptions",
    "run/preemption_totals",
}
#: Queries that read macros, and what makes these.
_OF_MACROS = (
    "dashboard/fleet_latency",
    "dashboard/fleet_leases",
    "dashboard/fleet_now",
    "dashboard/fleet_states",
    "dashboard/time_totals",
)
_MACROS = sql.read("dashboard/own_device_time.sql") + sql.read("borrowing/lease_parts_by_run.sql")
#: A file that somebody changed is found out after so many seconds; new ones at once.
CHECKED_S = 10
#: Tags that name who pays.
_TEAM_TAGS = ("team", "serving_team")
#: A run with no end to which nothing was added for this long was probably killed.
QUIET_S = 300

_NO_PRICE_BOOK = (
    "there is no price book, so nothing can be priced. `rose price adopt FILE` puts one on record for the ledger; or "
    f"start the dashboard with {choice.VARIABLE}=FILE, or for a look at made-up prices with {choice.VARIABLE}=example."
)


class ReadError(UserError):
    """The ledger could not be read; the message says why and what to do."""


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
    #: After how long without a word it expires; None where it does not say.
    expires_s: float | None

    @property
    def is_of_fleet(self) -> bool:
        """Whether it is a fleet's own, which has all that RL runs share."""
        return self.run_id == self.fleet_run_id

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
    def long(self) -> bool:
        """Whether it is shown by the day."""
        return self.started_at is not None and self.last_event_at - self.started_at > LONG


@dataclass(frozen=True, slots=True)
class Priced(Generic[T]):
    """What the pricing layer made of the ledger, or why it made nothing."""

    value: T | None
    error: str | None


def root() -> Path:
    """The ledger to show: the folder in ROSE_LEDGER, else as `ledger_to_show` finds it. Raises NoLedgerError."""
    named = os.environ.get("ROSE_LEDGER")
    return dashboard.ledger_to_show(Path(named) if named else None)


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
            for cache in (_read, _keep, _keep_few):
                cache.clear()
        _newest[ledger] = now
    return now


def quiet_s(ledger: Path) -> float:
    """Seconds since an event was last added to the ledger."""
    written = [head.stat().st_mtime for head in (ledger / "heads").glob("[!.]*.json")]
    return time.time() - max(written, default=0.0)


def runs(ledger: Path, run_id: str = "") -> list[Run]:
    """The newest runs, newest first, and the one of that id, however old. Raises ReadError or LedgerError."""
    return [Run(**row) for row in _rows(ledger, "dashboard/runs", run_id).drop("runs").to_dicts()]


def run_count(ledger: Path) -> int:
    """How many runs there are, with those that `runs` leaves out. Raises ReadError or LedgerError."""
    rows = _rows(ledger, "dashboard/runs")
    return int(rows["runs"][0]) if rows.height else 0


def span_ns(ledger: Path) -> tuple[int, int] | None:
    """From when to when devices were there, UTC nanoseconds; None where none was. Raises ReadError or LedgerError."""
    (bounds,) = _rows(ledger, "dashboard/span").iter_rows()
    return None if None in bounds else bounds


def tags(ledger: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The teams that runs name, and their other tags as `name:value`. Raises ReadError or LedgerError."""
    own = list(tags_by_run(ledger).values())
    teams = {value for tags in own for name in _TEAM_TAGS if (value := tags.get(name))}
    others = {f"{name}:{value}" for tags in own for name, value in tags.items() if value and ":" not in name}
    book = price_book(ledger).value
    teams |= {tag.tags["team"] for tag in book.device_tag if "team" in tag.tags} if book is not None else set()
    return (*sorted(teams), UNALLOCATED), tuple(sorted(others))


def tags_by_run(ledger: Path) -> dict[str, dict[str, str | None]]:
    """The tags of every run that has some. Raises ReadError or LedgerError."""
    return {run_id: tags_of(text) for run_id, text in _rows(ledger, "dashboard/tags").iter_rows()}


def models(ledger: Path) -> dict[str, str]:
    """The model that rollouts of each fleet's run were made with. Raises ReadError or LedgerError."""
    return dict(_rows(ledger, "dashboard/models").iter_rows())


def rows(ledger: Path, query: str, run: Run) -> pl.DataFrame:
    """The rows of `sql/<query>.sql`, or of its daily form for a long run. Raises ReadError or LedgerError."""
    if run.long and query in _DAILY:
        query = f"{query}_daily"
    return _rows(ledger, query, run.run_id)


class Window(NamedTuple):
    """[from_ns, to_ns), UTC nanoseconds since the epoch."""

    from_ns: int
    to_ns: int


def in_window(
    ledger: Path, query: str, run: Run, window: Window, blocks: int = 200, part: str | None = None
) -> pl.DataFrame:
    """The rows of `sql/<query>.sql` in a part of a run, in at most so many bins, by the day where it is long.

    `part` narrows it down to what the query says. Raises ReadError or LedgerError.
    """
    if by_day(window) and query in _DAILY:
        query = f"{query}_daily"
    asked = (
        ("run_id", run.run_id),
        ("from_ns", window.from_ns),
        ("to_ns", window.to_ns),
        ("blocks", blocks),
        ("part", part),
    )
    return _as_it_is(ledger, query, *asked)


def in_blocks(ledger: Path, query: str, run: Run, part: str = "step", blocks: int = 200) -> pl.DataFrame:
    """The rows of `sql/<query>.sql` on a whole run by `step` or `version`, at most so many.

    Raises ReadError or LedgerError.
    """
    asked = (("run_id", run.run_id), ("part", part), ("blocks", blocks))
    return _as_it_is(ledger, query, *asked)


def by_day(window: Window) -> bool:
    """Whether a window is shown by the day."""
    return window.to_ns - window.from_ns > LONG // timedelta(microseconds=1) * 1000


def of_part(ledger: Path, query: str, run: Run, part: str) -> pl.DataFrame:
    """The rows of `sql/<query>.sql` on one thing of a run, such as a lease. Raises ReadError or LedgerError."""
    return _as_it_is(ledger, query, ("run_id", run.run_id), ("part", part))


def charged(ledger: Path, run: Run, *, unverified: bool = False) -> Priced[Charges]:
    """The charges of a run at its price book's prices, or why there are none."""
    chosen = price_book(ledger, run)
    if (book := chosen.value) is None:
        return Priced(None, chosen.error)
    return kept(
        lambda: charges.price(ledger, book, run_id=run.run_id, allow_unverified=unverified, seen=seen(str(ledger))),
        ledger,
        "charged",
        run.run_id,
        *book_key(book),
        unverified,
        large=True,
    )


def between(ledger: Path, query: str, period: Period, provenance: str) -> pl.DataFrame:
    """The rows of `sql/<query>.sql` on a period and one provenance. Raises ReadError or LedgerError."""
    asked = (("from_ns", period.from_ns), ("to_ns", period.to_ns), ("provenance", provenance))
    return _as_it_is(ledger, query, *asked)


def _rows(ledger: Path, query: str, run_id: str = "") -> pl.DataFrame:
    return _as_it_is(ledger, query, ("run_id", run_id))


def _as_it_is(ledger: Path, query: str, *variables: tuple[str, object]) -> pl.DataFrame:
    return _read(str(ledger), query, variables, _current(ledger))


@st.cache_data(ttl=TTL_S, max_entries=64, show_spinner=False)
def _read(ledger: str, query: str, variables: tuple[tuple[str, object], ...], mark: str) -> pl.DataFrame:
    """`mark` is part of the key only: an event that arrives meanwhile can make the rows newer, never older."""
    with closing(catalog.connect(ledger)) as connection:
        try:
            set_variables(connection, period_end_ns=time.time_ns(), **dict(variables))
            macros = _MACROS if query.startswith(_OF_MACROS) else ""
            frame: pl.DataFrame = connection.sql(macros + sql.read(f"{query}.sql")).pl()
            # DuckDB counts and sums whole numbers as HUGEINT, which comes out as a decimal.
            return frame.with_columns(selectors.decimal().cast(pl.Int64))
        except duckdb.CatalogException as error:
            raise ReadError(
                f"A view of the ledger is missing, or lacks a column ({error}). Its catalog was written by another "
                "version of ROSE; any writer of this version puts it right when it opens the ledger."
            ) from error
        except duckdb.Error as error:
            raise ReadError(
                f"The ledger cannot be read: {error}. `rose ledger verify` names what is damaged."
            ) from error


def kept(make: Callable[[], T], ledger: Path, *key: object, large: bool = False) -> Priced[T]:
    """What `make` returns, or the message of the error it raises for its user; `key` names it and all it depends on.

    It is made once for all sessions and never changes, until the ledger gains an event. `large`: few are kept at once.
    """
    keep = _keep_few if large else _keep
    priced: Priced[T] = keep((str(ledger), _current(ledger), *map(repr, key)), make)
    return priced


# Two functions, since that is how Streamlit tells caches apart. What begins with an underscore is no part of the key.
@st.cache_resource(ttl=TTL_S, max_entries=64, show_spinner=False)
def _keep(key: tuple[str, ...], _make: Callable[[], T]) -> Priced[T]:
    return attempt(_make)


# A view of a period and of the one that it is compared with takes four.
@st.cache_resource(ttl=TTL_S, max_entries=8, show_spinner=False)
def _keep_few(key: tuple[str, ...], _make: Callable[[], T]) -> Priced[T]:
    return attempt(_make)


def attempt(make: Callable[[], T]) -> Priced[T]:
    """What `make` returns, or the message of the error that it raises for its user."""
    try:
        return Priced(make(), None)
    except (UserError, duckdb.Error) as error:
        return Priced(None, str(error))


def problems(ledger: Path) -> list[str]:
    """What is wrong with the ledger; empty where it is sound. Reads what is new or changed, and at most each
    CHECKED_S. Raises LedgerError."""
    return _problems(str(ledger), mark(ledger))


@st.cache_data(ttl=CHECKED_S, max_entries=16, show_spinner=False)
def _problems(ledger: str, mark: str) -> list[str]:
    return verify.verify(ledger, seen=seen(ledger)).doubts


def verifies(ledger: Path) -> bool:
    """Whether nothing is wrong with the ledger. Raises LedgerError."""
    return not problems(ledger)


def price(ledger: Path, run: Run, *, unverified: bool = False) -> Priced[Report]:
    """The cost report of a run as the ledger stands, or why there is none."""
    chosen = price_book(ledger, run)
    if (book := chosen.value) is None:
        return Priced(None, chosen.error)
    return kept(
        lambda: report.build(ledger, run.run_id, book, unverified, seen(str(ledger))),
        ledger,
        "report",
        run.run_id,
        *book_key(book),
        unverified,
    )


def answer(ledger: Path, run: Run, make: Callable[[PricedRun], T], *, unverified: bool) -> Priced[tuple[T, Stamp]]:
    """What `make`, a function of a module, makes of a run at its price book's prices, or why there is nothing."""
    chosen = price_book(ledger, run)
    if (book := chosen.value) is None:
        return Priced(None, chosen.error)

    def build() -> tuple[T, Stamp]:
        with priced(ledger, run.run_id, book, unverified, seen(str(ledger))) as priced_run:
            return make(priced_run), priced_run.stamp

    key = (make.__module__, make.__qualname__, run.run_id, *book_key(book), unverified)
    return kept(build, ledger, *key)


def book_key(book: PriceBook) -> tuple[str, str]:
    """Names a price book and the rule it was chosen by, for caches."""
    return book.sha256, book.chosen


@st.cache_resource(show_spinner=False)
def seen(ledger: str) -> Seen:
    """What was verified, once for all sessions: what the last verification left, and what changed since."""
    return verified.load(ledger)
