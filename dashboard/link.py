"""What a page shows, as the query of its address: what is chosen in the bar, and what is opened in the page.

A link has what differs from the defaults. Whatever is not exactly a value that could have been written is left out, and
the page says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from typing import Any, cast

from dashboard import escape
from rose.pricing.money import PricingError
from rose.pricing.spend.calendar import FORMS, Calendar

#: Periods that stand for what the ledger has: the newest month with data, and everything.
NEWEST, ALL = "newest", "all"
AMORTIZED, FULLY_LOADED = "amortized", "fully-loaded"
VIEWS = (AMORTIZED, FULLY_LOADED)
PROVENANCES = ("live", "replay", "simulated")
#: What charges are divided by, and which of them.
GROUPS = (
    "team",
    "run",
    "device-class",
    "device",
    "pool",
    "lease",
    "bucket",
    "policy-version",
    "task",
    "fate",
    "cause",
    "route",
)
ROLLOUTS, EVERYTHING = "rollouts", "everything"
#: Seconds before a run's last event that its charts show.
WINDOWS_S: Mapping[str, int] = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800}

_LENGTH_MAX = 200
_SHOWN_MAX = 40
_YEARS = range(1970, 2116)
#: An instant to try a period at: 2026-11-01.
_NOW_NS = 1_793_491_200 * 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What is chosen. None: what there is but one of, or all."""

    period: str = NEWEST
    view: str = AMORTIZED
    provenance: str | None = None
    run: str | None = None
    team: str | None = None
    #: `name:value`, of runs.
    tag: str | None = None
    #: The lease that is opened.
    lease: str | None = None
    #: What charts of a fleet show, one of `WINDOWS_S`.
    window: str = "24h"
    #: What charges are divided by, and whether they are those of rollouts alone.
    by: str = GROUPS[0]
    work: str = ROLLOUTS


def parse(query: Mapping[str, Sequence[str]]) -> tuple[Link, list[str]]:
    """The link of a query, and a sentence in Markdown on everything in it that was left out."""
    link, ignored = Link(), []
    for name, values in query.items():
        if name not in _FIELDS:
            ignored.append(f"The address has an unknown choice “{_shown(name)}”: it was left out.")
            continue
        is_value, should = _FIELDS[name]
        if len(values) == 1 and is_value(values[0]):
            link = with_choices(link, {name: values[0]})
        else:
            texts = " and ".join(f"“{_shown(value)}”" for value in values[:2])
            ignored.append(f"The address has {name} {texts}, which is not {should}: it was left out.")
    return link, ignored


def with_choices(link: Link, choices: Mapping[str, object]) -> Link:
    """The link with other values in some fields, by name."""
    return replace(link, **cast(dict[str, Any], choices))


def query(link: Link) -> dict[str, str]:
    """The query of a link, without defaults."""
    return {field.name: value for field in fields(Link) if (value := getattr(link, field.name)) != field.default}


def is_period(text: str) -> bool:
    """Whether a period may be written so."""
    if text in (NEWEST, ALL):
        return True
    if not re.fullmatch(r"[0-9A-Za-z.\-]{1,40}", text) or "T" in text:
        return False
    try:
        period = Calendar().period(text, _NOW_NS)
    except PricingError:
        return False
    years = (date.fromordinal(719_163 + ns // (86_400 * 10**9)).year for ns in (period.from_ns, period.to_ns - 1))
    return all(year in _YEARS for year in years)


def _shown(text: str) -> str:
    return escape.markdown(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")


def _name(text: str) -> bool:
    """Whether a ledger may have such a name."""
    return 0 < len(text) <= _LENGTH_MAX and text.isprintable()


def _tag(text: str) -> bool:
    name, colon, value = text.partition(":")
    return _name(text) and bool(name and colon and value)


def _one_of(known: Collection[str]) -> tuple[Callable[[str], bool], str]:
    return known.__contains__, f"one of {', '.join(known)}"


#: Whether a text may be the value of a field, and what the value should be.
_FIELDS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "period": (is_period, f"a period: write {FORMS}"),
    "view": _one_of(VIEWS),
    "provenance": _one_of(PROVENANCES),
    "run": (_name, "the id of a run"),
    "team": (_name, "the name of a team"),
    "tag": (_tag, "a tag such as project:search"),
    "lease": (_name, "the id of a lease"),
    "window": _one_of(WINDOWS_S),
    "by": _one_of(GROUPS),
    "work": _one_of((ROLLOUTS, EVERYTHING)),
}
assert set(_FIELDS) == {field.name for field in fields(Link)}
