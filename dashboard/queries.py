"""The queries of the page SQL: run as `rose query` and `rose sql` run them, in the background, and ended by a click."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import polars as pl

from dashboard import data, escape
from dashboard.data import Priced
from dashboard.link import OWN, Link
from rose.errors import UserError
from rose.ledger.access import logged
from rose.ledger.commands.output import cell_text
from rose.ledger.reading import named
from rose.ledger.reading.dictionary import View
from rose.ledger.reading.query import Cancel, Result, query

ROWS_MAX, SECONDS_MAX = 10_000, 30
#: So many run at a time for all sessions: each may take 2 GB.
RUNNING_MAX = 4
_slots = threading.BoundedSemaphore(RUNNING_MAX)

_INTEGERS = (
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "HUGEINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
    "UHUGEINT",
)
_OTHERS: Mapping[str, pl.DataType] = {
    "FLOAT": pl.Float64(),
    "DOUBLE": pl.Float64(),
    "BOOLEAN": pl.Boolean(),
    "DATE": pl.Date(),
    **dict.fromkeys(
        ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"), pl.Datetime("us")
    ),
}


class BusyError(UserError):
    """As many queries run as may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A named query with what its variables are set to, as text; or a SELECT of the reader's own, `name` OWN."""

    name: str
    text: str = ""
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What came of a query, and when (UTC). `truncated`: there were more rows."""

    frame: pl.DataFrame
    truncated: bool
    seconds: float
    at: datetime


class Running:
    """A query under way in a thread of its own; `answer` is there once `done` is set."""

    def __init__(self, ledger: Path, asked: Asked, who: str | None) -> None:
        """Starts it. Raises BusyError."""
        if not _slots.acquire(blocking=False):
            raise BusyError(f"{RUNNING_MAX} queries run already, which is as many as may; try again in a moment")
        self.asked, self.cancel, self.done = asked, Cancel(), threading.Event()
        self.answer: Priced[Rows] = Priced(None, None)
        self._began = time.monotonic()
        threading.Thread(target=self._run, args=(ledger, who), name="rose-query", daemon=True).start()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def _run(self, ledger: Path, who: str | None) -> None:
        try:
            self.answer = data.attempt(lambda: self._rows(run(ledger, self.asked, who, self.cancel)))
        except Exception as error:
            # Whoever waits must be told, whatever it was.
            self.answer = Priced(None, f"the query failed: {type(error).__name__}: {error}")
        finally:
            _slots.release()
            self.done.set()

    def _rows(self, result: Result) -> Rows:
        made = frame(result)
        return Rows(frame=made, truncated=result.truncated, seconds=self.seconds, at=datetime.now(UTC))


def of_link(chosen: Link) -> Asked | None:
    """The named query of a link; None where it has none, or a SELECT of somebody's own, which no link runs."""
    if chosen.query in (None, OWN):
        return None
    assert chosen.query is not None
    return Asked(name=chosen.query, variables=tuple(parse_qsl(chosen.variables or "", keep_blank_values=True)))


def written(variables: Mapping[str, str]) -> str | None:
    """What variables are set to, as a link has it; those without a text are left out."""
    return urlencode({name: text for name, text in variables.items() if text}) or None


def run(ledger: Path, asked: Asked, who: str | None, cancel: Cancel) -> Result:
    """The rows, read by `who`; None: this user. Raises QueryError, NamedQueryError, LedgerError."""
    if asked.name == OWN:
        with logged(ledger, "query", asked.text, who=who) as reading:
            result = query(ledger, asked.text, limit=ROWS_MAX, timeout_s=SECONDS_MAX, cancel=cancel)
            reading.rows = len(result.rows)
            return result
    wanted = named.load(asked.name)
    given = named.values(wanted, dict(asked.variables), now=datetime.now(UTC))
    with logged(ledger, "query", named.script(wanted, given), who=who) as reading:
        result = named.run(ledger, wanted, given, limit=ROWS_MAX, timeout_s=SECONDS_MAX, cancel=cancel)
        reading.rows = len(result.rows)
        return result


def frame(result: Result) -> pl.DataFrame:
    """The rows with columns that sort as what they are; what polars or a screen has no type for is text."""
    columns = (
        zip(result.columns, result.types, zip(*result.rows, strict=True), strict=True)
        if result.rows
        else ((name, kind, ()) for name, kind in zip(result.columns, result.types, strict=True))
    )
    return pl.DataFrame([_column(name, kind, cells) for name, kind, cells in columns])


def _column(name: str, kind: str, cells: tuple[Any, ...]) -> pl.Series:
    try:
        if kind in _INTEGERS:
            return pl.Series(name, cells, dtype=pl.Int64)
        if kind.startswith("DECIMAL"):
            precision, scale = (int(part) for part in kind[len("DECIMAL(") : -1].split(","))
            return pl.Series(name, cells, dtype=pl.Decimal(precision, scale))
        if (dtype := _OTHERS.get(kind)) is not None:
            return pl.Series(name, cells, dtype=dtype)
    except (OverflowError, TypeError, ValueError, pl.exceptions.PolarsError):
        # An integer of sixteen bytes, a date beyond those of polars.
        pass
    return pl.Series(name, [None if cell is None else cell_text(cell) for cell in cells], dtype=pl.String)


def shown(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows for a screen, which knows no exact decimals: as floats, which sort and draw as numbers."""
    return rows.with_columns(pl.col(pl.Decimal).cast(pl.Float64))


def one_view(views: list[View], name: str) -> pl.DataFrame:
    """The columns of a view: name, type and what they mean."""
    described = next(view for view in views if view.name == name)
    rows = [(column.name, column.type, escape.cell(column.about)) for column in described.columns]
    return pl.DataFrame(rows, schema=["column", "type", "about"], orient="row")
