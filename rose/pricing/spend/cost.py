"""What a period cost by any few dimensions: closed hours as the books have them, open hours priced now.

Closed hours come from the sums of their postings, so a year of a large fleet is answered at once. Every line is whole
nano-dollars, and all lines of an answer without a filter sum to the bill of the period exactly.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

import sql
from rose.clock import utc
from rose.errors import did_you_mean
from rose.ledger import catalog, database
from rose.ledger.examine import Seen
from rose.pricing.closing.period import NS_PER_DAY, Period
from rose.pricing.figures import AMORTIZED, Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.price_books.rules import DeviceTag, tagging
from rose.pricing.query import rows, set_variables
from rose.pricing.spend import sums
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.gather import STATES, Gathered, gather

UNALLOCATED = "unallocated"
#: Times of the reader's calendar: their lines stand in order of time.
TIMES: tuple[str, ...] = ("day", "week", "month", "quarter", "year")
BY: tuple[str, ...] = ("team", "run", "device-class", "pool", "device", "hardware", "bucket", "task", "version", *TIMES)
#: More would be the charges themselves.
DIMENSIONS_MAX = 6
_TAG = "tag:"
#: What a price book tells devices by.
_DEVICE = ("device_id", "hardware_id", "pool", "device_class")


class QuestionError(PricingError):
    """A wrong dimension, tag or value in a question; the message names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A period, none to six dimensions (of BY, or `tag:NAME`), and values that its charges must have in others.

    Raises QuestionError for a dimension that there is none of, is given twice, or more than six.
    """

    period: Period
    by: tuple[str, ...] = ()
    only: Mapping[str, str] = field(default_factory=dict)
    calendar: Calendar = field(default_factory=Calendar)
    provenance: str | None = None
    #: The close that is asked about: its period, its provenance and its rows alone.
    close_id: str | None = None

    def __post_init__(self) -> None:
        for name in (*self.by, *self.only):
            _check_dimension(name)
        if len(self.by) > DIMENSIONS_MAX or len(set(self.by)) < len(self.by):
            raise QuestionError(f"--by names {', '.join(self.by)}: give one to {DIMENSIONS_MAX} dimensions, each once")
        if len(self.tags) > 1:
            raise QuestionError(f"one tag can be asked for at a time, and not {' and '.join(sorted(self.tags))}")
        if self.by_device and not self.whole_days:
            raise QuestionError(
                "devices are kept by UTC day: give a period of whole UTC days without --tz, or ask by something else"
            )

    @property
    def tags(self) -> set[str]:
        return {name.removeprefix(_TAG) for name in (*self.by, *self.only) if name.startswith(_TAG)}

    @property
    def by_device(self) -> bool:
        return not {"device", "hardware"}.isdisjoint((*self.by, *self.only))

    @property
    def whole_days(self) -> bool:
        period = self.period
        return self.calendar.zone.key == "UTC" and period.from_ns % NS_PER_DAY == 0 == period.to_ns % NS_PER_DAY


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A value for each dimension asked for; `cost_nano` = closed + corrections + open, nano-dollars."""

    values: tuple[str, ...]
    closed_nano: int
    corrections_nano: int
    open_nano: int
    ns: int
    tokens: int

    @property
    def cost_nano(self) -> int:
        return self.closed_nano + self.corrections_nano + self.open_nano


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The answer: amortized cost, in nano-units of the stamp's currency.

    `total` sums `lines`; `bill_nano` is the whole period's, which `total` is where there is no filter.
    """

    question: Question
    lines: tuple[Line, ...]
    total: Line
    bill_nano: int
    stamp: Stamp
    #: Closes that have a part of the period, with the number of corrections posted to each.
    closes: Mapping[str, int]
    #: Parts of the period that are not closed.
    open: tuple[Period, ...]

    def to_json(self) -> dict[str, Any]:
        """Amounts are whole nano-dollars of the currency."""
        asked = self.question
        return {
            "view": AMORTIZED,
            **self.stamp.to_json(),
            "time_zone": asked.calendar.tz,
            "by": list(asked.by),
            "only": dict(asked.only),
            "closes": [{"close_id": close_id, "corrections": count} for close_id, count in self.closes.items()],
            "open": [{"from": utc(gap.from_ns), "to": utc(gap.to_ns)} for gap in self.open],
            "bill_nano": self.bill_nano,
            "total": self._amounts(self.total),
            "lines": [dict(zip(asked.by, line.values, strict=True)) | self._amounts(line) for line in self.lines],
        }

    def _amounts(self, line: Line) -> dict[str, int]:
        return {
            "cost_nano": line.cost_nano,
            "closed_nano": line.closed_nano,
            "corrections_nano": line.corrections_nano,
            "open_nano": line.open_nano,
            "ns": line.ns,
            "tokens": line.tokens,
        }


def ask(
    root: Path,
    question: Question,
    price_book: str | PriceBook | None = None,
    *,
    allow_unverified: bool = False,
    seen: Seen | None = None,
) -> Cost:
    """Answer a question; `price_book` prices hours that are not closed.
    `seen` is for `verify`.

    Raises QuestionError for a value that no charge of the period has; PricingError where there is nothing to charge,
    for more than one provenance (unless one is chosen), and for open hours that cannot be priced; PriceBookError;
    LedgerError.
    """
    grain: sums.Grain = "day" if question.by_device else "hour"
    gathering = functools.partial(
        gather,
        root,
        question.period,
        provenance=question.provenance,
        allow_unverified=allow_unverified,
        close_id=question.close_id,
        seen=seen,
    )
    gathered = gathering(price_book, grain=grain)
    entries = gathered.newest_book(root).device_tag if question.tags else []
    if grain == "hour" and any((tag.device or tag.hardware) and question.tags & tag.tags.keys() for tag in entries):
        if not question.whole_days:
            raise QuestionError(
                "the price book tags devices by name or hardware, and devices are kept by UTC day: give a period of "
                "whole UTC days without --tz"
            )
        grain = "day"
        gathered = gathering(price_book, grain=grain)
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        _prepare(connection, question, gathered, grain)
        _set_tags(connection, root, question, gathered.stamp.provenance, entries)
        connection.execute(sql.read("spend/cost.sql"))
        # Of the charges and not of `cost`, so that what `cost` joins to them cannot count one twice.
        summed = "SELECT coalesce(sum(cost_nano), 0) FROM part SEMI JOIN hour USING (hour)"
        (bill,) = connection.execute(summed).fetchall()
        lines = _lines(connection, question)
    total = Line(
        values=(),
        **{
            name: sum(getattr(line, name) for line in lines)
            for name in ("closed_nano", "corrections_nano", "open_nano", "ns", "tokens")
        },
    )
    assert question.only or total.cost_nano == int(bill[0])
    return Cost(
        question=question,
        lines=tuple(lines),
        total=total,
        bill_nano=int(bill[0]),
        stamp=gathered.stamp,
        closes=gathered.closes,
        open=gathered.open,
    )


def unknown_team(root: Path, team: str) -> str | None:
    """Return a warning for a team that no run of the ledger names: a misspelt one costs nothing. Raises LedgerError."""
    with catalog.connect(root) as connection:
        known = {str(row["team"]) for row in rows(connection, "spend/teams") if row["team"]}
    if team in known | {UNALLOCATED}:
        return None
    return f"no run of the ledger has the tag team {team!r}{did_you_mean(team, known)}"


def _prepare(connection: duckdb.DuckDBPyConnection, question: Question, gathered: Gathered, grain: sums.Grain) -> None:
    """Make `part` and `hour`, which sql/spend/cost.sql reads."""
    devices = [name if grain == "day" else f"NULL::VARCHAR AS {name}" for name in sums.DEVICE_KEYS]
    columns = ", ".join((*sums.KEYS, *sums.AMOUNTS, *devices))
    selects = [
        f"SELECT {columns}, '{state}' AS state FROM read_parquet({catalog.quoted(str(path))})"
        for state, path in gathered.files
    ]
    for number, (state, frame) in enumerate(gathered.frames):
        connection.register(f"rows_{number}", frame)
        selects.append(f"SELECT {columns}, '{state}' AS state FROM rows_{number}")
    connection.execute(f"CREATE TEMP VIEW part AS {' UNION ALL BY NAME '.join(selects)}")
    # A year has nine thousand: their times are made of numbers, not one by one.
    schema: dict[str, Any] = {"hour": pl.Int64, **dict.fromkeys(TIMES, pl.String)}
    hours = pl.DataFrame(question.calendar.hours(question.period), schema=schema, orient="row")
    connection.register("hour", hours.with_columns(pl.from_epoch("hour", time_unit="ns").cast(pl.Datetime("us"))))


def _set_tags(
    connection: duckdb.DuckDBPyConnection,
    root: Path,
    question: Question,
    provenance: str,
    entries: Sequence[DeviceTag],
) -> None:
    """Make `run_tag`, of the runs of a provenance, and `device_tag`. Raises QuestionError for a tag that none has."""
    tagged: list[tuple[str, str | None]] = []
    devices: list[tuple[str | None, ...]] = []
    for tag in question.tags:
        with catalog.connect(root) as ledger:
            set_variables(ledger, provenance=provenance)
            tags = {row["run_id"]: tags_of(row["tags_json"]) for row in rows(ledger, "spend/run_tags")}
        names = {name for own in tags.values() for name in own} | {name for entry in entries for name in entry.tags}
        if tag not in names:
            raise QuestionError(f"no run or device has the tag {tag!r}{did_you_mean(tag, names)}")
        tagged = [(run_id, own[tag]) for run_id, own in tags.items() if tag in own]
        known = connection.execute(f"SELECT DISTINCT {', '.join(_DEVICE)} FROM part").fetchall() if entries else []
        own_tags = tagging(entries)
        devices = [(*device, own_tags(*device).get(tag)) for device in known]
    connection.register("run_tag", pl.DataFrame(tagged, schema={"run_id": pl.String, "tag": pl.String}, orient="row"))
    schema = dict.fromkeys((*_DEVICE, "tag"), pl.String)
    connection.register("device_tag", pl.DataFrame(devices, schema=schema, orient="row"))


def tags_of(tags_json: str) -> dict[str, str | None]:
    """Tags by name. Of a name given twice the first counts, as it does where charges are given their team."""
    tags: dict[str, Any] = json.loads(
        tags_json, object_pairs_hook=lambda pairs: dict(reversed(pairs)), parse_int=str, parse_float=str
    )
    return {
        name: value if value is None or isinstance(value, str) else json.dumps(value) for name, value in tags.items()
    }


def _lines(connection: duckdb.DuckDBPyConnection, question: Question) -> list[Line]:
    """The lines in order: of times by time, else the dearest first, those that begin with the same values together."""
    keys = [_column(name) for name in question.by]
    where = [f"{_column(name)} = ?" for name in question.only]
    for name, value in question.only.items():
        known = {str(row[0]) for row in connection.execute(f"SELECT DISTINCT {_column(name)} FROM cost").fetchall()}
        if value not in known:
            period = question.calendar.text(question.period)
            raise QuestionError(f"no charge of {period} has {name} {value!r}{did_you_mean(value, known)}")
    amounts = [f"coalesce(sum(cost_nano) FILTER (state = '{state}'), 0)" for state in STATES]
    selected = ", ".join([*keys, *amounts, "coalesce(sum(ns), 0)", "coalesce(sum(tokens), 0)"])
    filtered = f" WHERE {' AND '.join(where)}" if where else ""
    grouped = " GROUP BY ALL" if keys else ""
    summed = connection.execute(f"SELECT {selected} FROM cost{filtered}{grouped}", list(question.only.values()))
    lines = [
        Line(
            values=row[: len(keys)],
            closed_nano=int(row[-5]),
            corrections_nano=int(row[-4]),
            open_nano=int(row[-3]),
            ns=int(row[-2]),
            tokens=int(row[-1]),
        )
        for row in summed.fetchall()
    ]
    groups = Counter[tuple[str, ...]]()
    for line in lines:
        groups.update({line.values[: count + 1]: line.cost_nano for count in range(len(keys))})

    def place(line: Line) -> tuple[Any, ...]:
        return tuple(
            (0 if name in TIMES else -groups[line.values[: count + 1]], line.values[count])
            for count, name in enumerate(question.by)
        )

    return sorted(lines, key=place)


def _column(name: str) -> str:
    return '"tag"' if name.startswith(_TAG) else f'"{name}"'


def _check_dimension(name: str) -> None:
    if name.startswith(_TAG) and name != _TAG:
        return
    if name not in BY:
        raise QuestionError(f"cost cannot be shown by {name!r}{did_you_mean(name, {*BY, 'tag:NAME'})}")
