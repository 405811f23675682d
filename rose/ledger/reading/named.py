"""The named queries of `sql/queries`. A file's head has the question, a line `name (TYPE): what it restricts` for each
variable, and how to read the result. An unset variable restricts nothing."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import sql
from rose.errors import did_you_mean
from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger

if TYPE_CHECKING:
    import duckdb

    from rose.ledger.reading.query import Result

Value = datetime | str | int | Decimal

_MEMORY_GB = 2
_DURATION = re.compile(r"(\d+)(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_VARIABLE = re.compile(r"(\w+) \(([A-Z]+(?:\(\d+,\d+\))?)\): (.+)")


class NamedQueryError(LedgerError):
    """There is no such query or variable, or a variable has a wrong value."""


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    type: str
    about: str


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query of `sql/queries`. `reading` says how to read the result; `text` is the whole file."""

    name: str
    question: str
    variables: tuple[Variable, ...]
    reading: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "text"}


def names() -> list[str]:
    return sorted(sql.paths("queries"))


@functools.cache
def load(name: str) -> NamedQuery:
    if (path := sql.paths("queries").get(name)) is None:
        raise NamedQueryError(f"no query is named {name!r}{did_you_mean(name, names())} `rose query` lists them all")
    text = sql.read(path)
    head = re.match(r"(?:--.*\n)+", text)
    assert head, f"sql/{path} begins without a comment"
    question, variables, reading = re.sub(r"^-- ?", "", head[0], flags=re.MULTILINE).split("\n\n", 2)
    return NamedQuery(
        name,
        " ".join(question.split()),
        tuple(Variable(*variable) for variable in _VARIABLE.findall(variables)),
        "\n\n".join(" ".join(paragraph.split()) for paragraph in reading.split("\n\n")),
        text,
    )


def assignments(items: Iterable[str]) -> dict[str, str]:
    texts_by_name: dict[str, str] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not (equals and name):
            raise NamedQueryError(f"{item!r} does not set a variable; write it as NAME=VALUE, such as step=3")
        if name in texts_by_name:
            raise NamedQueryError(f"{name} is given twice; give it once")
        texts_by_name[name] = text
    return texts_by_name


def values(query: NamedQuery, texts: Mapping[str, str], *, now: datetime) -> dict[str, Value]:
    """Return the values that `texts` give to the variables of `query`, in UTC. A duration such as 24h counts back from
    `now`. Raises NamedQueryError for an unknown variable, a wrong value, or if `since` is not before `until`."""
    variables = {variable.name: variable for variable in query.variables}
    if unknown := sorted(set(texts) - set(variables)):
        raise NamedQueryError(f"{query.name} reads no variable {unknown[0]!r}; it reads {', '.join(variables)}")
    parsed = {name: _value(variables[name], text, now) for name, text in texts.items()}
    since, until = parsed.get("since"), parsed.get("until")
    if isinstance(since, datetime) and isinstance(until, datetime) and since >= until:
        raise NamedQueryError(f"since {since} is not before until {until} (UTC); nothing lies between them")
    return parsed


def script(query: NamedQuery, bound: Mapping[str, Value]) -> str:
    types = {variable.name: variable.type for variable in query.variables}
    literals = {name: str(value).replace("'", "''") for name, value in bound.items()}
    settings = [f"SET VARIABLE {name} = CAST('{text}' AS {types[name]});\n" for name, text in literals.items()]
    return "".join(settings) + query.text


def run(
    ledger: Ledger, query: NamedQuery, bound: Mapping[str, Value], *, limit: int = 1000, timeout_s: float = 30.0
) -> Result:
    import duckdb

    from rose.ledger.reading.query import Result

    types = {variable.name: variable.type for variable in query.variables}
    with ledger.connect() as connection:
        try:
            connection.execute(f"SET memory_limit = '{_MEMORY_GB}GB'")
            connection.execute(f"SET max_execution_time = {max(1, round(timeout_s * 1000))}")
            for name, value in bound.items():
                connection.execute(f"SET VARIABLE {name} = CAST($value AS {types[name]})", {"value": value})
            cursor = connection.execute(query.text)
            columns = [column[0] for column in cursor.description or []]
            rows = cursor.fetchmany(limit + 1)
            if not rows:
                _require_recorded(connection, bound)
        except duckdb.InterruptException as error:
            raise NamedQueryError(
                f"{query.name} took longer than {timeout_s:g} s: narrow it by --since or --run, or raise --timeout"
            ) from error
        except duckdb.Error as error:
            raise LedgerError(f"{query.name} failed: {layout.unreadable(error)}") from error
        finally:
            with suppress(duckdb.Error):
                connection.execute("RESET memory_limit")
                connection.execute("RESET max_execution_time")
    return Result(columns, rows[:limit], truncated=len(rows) > limit)


def _require_recorded(connection: duckdb.DuckDBPyConnection, bound: Mapping[str, Value]) -> None:
    for variable, view in (("run_id", "run"), ("device_id", "device")):
        if (value := bound.get(variable)) is None:
            continue
        recorded = [
            row[0] for row in connection.execute(f"SELECT DISTINCT {variable} FROM {view} ORDER BY ALL").fetchall()
        ]
        if recorded and value not in recorded:
            near = f"{value!r}{did_you_mean(str(value), recorded)}"
            raise NamedQueryError(f'this ledger has no {view} with {variable} {near}: `rose sql "from {view}"`')


def _value(variable: Variable, text: str, now: datetime) -> Value:
    try:
        if variable.type == "TIMESTAMP":
            return _time(text, now)
        if variable.type == "BIGINT":
            if not -(2**63) <= int(text) < 2**63:
                raise ValueError(text)
            return int(text)
        if variable.type.startswith("DECIMAL"):
            return _decimal(text, variable.type)
    except (ValueError, OverflowError, InvalidOperation) as error:
        meant = {
            "TIMESTAMP": "a date (2026-11-01), a UTC time (2026-11-01T13:00), or how long ago (30m, 24h, 7d, 2w)",
            "BIGINT": "a whole number",
        }.get(variable.type, f"a number of type {variable.type}, such as 2.35")
        raise NamedQueryError(f"{variable.name} {text!r} is not {meant}") from error
    assert variable.type == "VARCHAR", f"{variable.name} has type {variable.type}, which no query had before"
    return text


def _time(text: str, now: datetime) -> datetime:
    if match := _DURATION.fullmatch(text):
        time = now - timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
    else:
        time = datetime.fromisoformat(text)
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)


def _decimal(text: str, type_name: str) -> Decimal:
    digits, scale = map(int, re.findall(r"\d+", type_name))
    value = Decimal(text)
    exact = value.is_finite() and value == round(value, scale) and abs(value) < 10 ** (digits - scale)
    if not exact or value < 0:
        raise ValueError(text)
    return value
