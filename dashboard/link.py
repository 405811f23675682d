"""What a page shows, as the query of its address: what is chosen in the bar, and what is picked in a chart.

A link says what differs from the defaults, so that it stays short and what it leaves out may move on, such as the
newest month. Reading one is strict: whatever is not exactly a value that could have been written is left out, and
said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, cast
from urllib.parse import parse_qsl

from dashboard import escape
from rose.pricing.money import PricingError
from rose.pricing.spend.calendar import Calendar

#: Periods that stand for what the ledger has: the newest month with data, and everything.
NEWEST, ALL = "newest", "all"
AMORTIZED, FULLY_LOADED = "amortized", "fully-loaded"
VIEWS = (AMORTIZED, FULLY_LOADED)
#: What a period is compared with: the one before it, the same a year before, or none.
BEFORE, YEAR, NONE = "before", "year", "none"
COMPARED = (BEFORE, YEAR, NONE)
PROVENANCES = ("live", "replay", "simulated")
ACTIONS = ("yield", "cut", "revoke")
#: What cost is divided by, and what a course is drawn over.
GROUPS = ("team", "run", "task", "model", "policy-version", "device-class", "pool")
STEPS, VERSIONS = "steps", "versions"
AXES = (STEPS, VERSIONS)
OWN = "own"
#: The figures of the Overview.
FIGURES = ("cost", "saved", "correct", "borrowed", "slo", "trust")
CHARTS = ("line", "bar", "none")
USD = "USD"
#: The longest text of a query that an address has, in characters.
SQL_MAX = 2000
TARGET = Decimal("99")

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?"
_LENGTH_MAX = 200
_SHOWN_MAX = 40
_YEARS = range(1970, 2116)
#: Some instant, to see whether a period is one: 2026-11-01.
_NOW_NS = 1_793_491_200 * 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What is chosen. None: what there is but one of, or all."""

    period: str = NEWEST
    compare: str = BEFORE
    view: str = AMORTIZED
    provenance: str | None = None
    run: str | None = None
    team: str | None = None
    #: `name:value`, of runs.
    tag: str | None = None
    #: Serving's target for requests within their latency budgets, in percent.
    target: Decimal = TARGET
    #: Which figure is opened.
    figure: str | None = None
    #: The lease that is opened.
    lease: str | None = None
    #: The preemption that is opened, and the action that preemptions are listed of.
    preemption: str | None = None
    action: str | None = None
    #: The time that charts of a run show, `2026-11-03T05:00..2026-11-03T06:30`, UTC; None: all of it.
    window: str | None = None
    #: What cost is divided by, and which of its rows is opened.
    by: str = GROUPS[0]
    row: str | None = None
    #: What a course is drawn over.
    axis: str = STEPS
    #: Which query the page SQL shows: the name of one, or OWN for the text in `sql`.
    query: str | None = None
    #: What its variables are set to, as the query of a URL: `since=7d&run_id=R`.
    variables: str | None = None
    #: A SELECT that is offered, and run by nothing but a click.
    sql: str | None = None
    #: How its rows are drawn, and by which columns; None: by their types.
    chart: str | None = None
    x: str | None = None
    y: str | None = None


@dataclass(frozen=True, slots=True)
class _Field:
    """How a value is read, raising ValueError, and what it should have been."""

    read: Callable[[str], str | Decimal]
    should: str


def parse(query: Mapping[str, Sequence[str]]) -> tuple[Link, list[str]]:
    """The link of a query, and a sentence in Markdown on everything in it that was left out."""
    link, ignored = Link(), []
    for name, values in query.items():
        if name not in _FIELDS:
            ignored.append(f"The address has “{_shown(name)}”, which is nothing that can be chosen: it was left out.")
            continue
        try:
            (text,) = values
            link = with_choices(link, {name: _FIELDS[name].read(text)})
        except ValueError:
            texts = " and ".join(f"“{_shown(value)}”" for value in values[:2])
            ignored.append(f"The address has {name} {texts}, which is not {_FIELDS[name].should}: it was left out.")
    return link, ignored


def with_choices(link: Link, choices: Mapping[str, object]) -> Link:
    """The link with other values in some fields, by name."""
    return replace(link, **cast(dict[str, Any], choices))


def query(link: Link) -> dict[str, str]:
    """The query of a link, without what is as it is by default."""
    return {field.name: _text(value) for field in fields(Link) if (value := getattr(link, field.name)) != field.default}


def is_period(text: str) -> bool:
    """Whether a period may be written so."""
    try:
        _period(text)
    except ValueError:
        return False
    return True


def _text(value: str | Decimal) -> str:
    return value if isinstance(value, str) else f"{value.normalize():f}"


def _shown(text: str) -> str:
    return escape.markdown(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")


def _period(text: str) -> str:
    if text in (NEWEST, ALL):
        return text
    if not re.fullmatch(r"[0-9A-Za-z.\-]{1,40}", text) or "T" in text:
        raise ValueError
    try:
        period = Calendar().period(text, _NOW_NS)
    except PricingError:
        raise ValueError from None
    years = (date.fromordinal(719_163 + ns // (86_400 * 10**9)).year for ns in (period.from_ns, period.to_ns - 1))
    if not all(year in _YEARS for year in years):
        raise ValueError
    return text


def _matching(pattern: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return read


def _one_of(known: Iterable[str]) -> _Field:
    names = tuple(known)
    return _Field(_matching("|".join(map(re.escape, names))), f"one of {', '.join(names)}")


def _name(text: str) -> str:
    """A name as a ledger may have it: whether it has it, whoever reads the ledger says."""
    if not 0 < len(text) <= _LENGTH_MAX or not text.isprintable():
        raise ValueError
    return text


def _tag(text: str) -> str:
    name, colon, value = _name(text).partition(":")
    if not (name and colon and value):
        raise ValueError
    return text


def _variables(text: str) -> str:
    pairs = dict(parse_qsl(_name(text), keep_blank_values=True, strict_parsing=True, errors="strict"))
    if not all(re.fullmatch(r"[a-z_]{1,40}", name) and value.isprintable() for name, value in pairs.items()):
        raise ValueError
    return text


def _sql(text: str) -> str:
    if not 0 < len(text) <= SQL_MAX or not text.replace("\n", "").replace("\t", "").isprintable():
        raise ValueError
    return text


def _percent(text: str) -> Decimal:
    if not re.fullmatch(r"\d{1,3}(\.\d{1,4})?", text) or not 0 < Decimal(text) <= 100:
        raise ValueError
    return Decimal(text)


def window(begin: datetime, end: datetime) -> str:
    """A window between two UTC times without a zone, to the second: `2026-11-03T05:00..2026-11-03T06:30:15`."""
    times = (f"{at:%Y-%m-%dT%H:%M:%S}".removesuffix(":00") for at in (begin, end))
    return "..".join(times)


def window_ns(text: str) -> tuple[int, int]:
    """The ends of a window, UTC nanoseconds since the epoch. Raises ValueError for another text."""
    match = re.fullmatch(rf"({_TIME})\.\.({_TIME})", text)
    if match is None:
        raise ValueError
    begin, end = (datetime.fromisoformat(f"{part}+00:00") for part in match.groups())
    if begin >= end or begin.year not in _YEARS or end.year not in _YEARS:
        raise ValueError
    return int(begin.timestamp()) * 10**9, int(end.timestamp()) * 10**9


def _window(text: str) -> str:
    window_ns(text)
    return text


_FIELDS: Mapping[str, _Field] = {
    "period": _Field(_period, "a period such as 2026-11, 2026-Q4, 7d, this-month, 2026-11-03..2026-11-09 or all"),
    "compare": _one_of(COMPARED),
    "view": _one_of(VIEWS),
    "provenance": _one_of(PROVENANCES),
    "run": _Field(_name, "the id of a run"),
    "team": _Field(_name, "the name of a team"),
    "tag": _Field(_tag, "a tag such as project:search"),
    "target": _Field(_percent, "a share in percent such as 99.5"),
    "figure": _one_of(FIGURES),
    "lease": _Field(_name, "the id of a lease"),
    "preemption": _Field(_name, "the id of a preemption"),
    "action": _one_of(ACTIONS),
    "window": _Field(_window, "a time such as 2026-11-03T05:00..2026-11-03T06:30"),
    "by": _one_of(GROUPS),
    "row": _Field(_name, "the name of a row"),
    "axis": _one_of(AXES),
    "query": _Field(_matching("[a-z][a-z0-9_]{0,99}"), "the name of a query"),
    "variables": _Field(_variables, "what variables are set to, such as since=7d&turn=3"),
    "sql": _Field(_sql, f"text of at most {SQL_MAX:,} characters"),
    "chart": _one_of(CHARTS),
    "x": _Field(_name, "the name of a column"),
    "y": _Field(_name, "the name of a column"),
}
