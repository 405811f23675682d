"""What a page shows, as the query of its address: what is chosen in the bar, and what is opened in the page.

A link has what differs from the defaults. A value that could not have been written is left out, and the page names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from dashboard import escape
from rose.pricing.money import PricingError
from rose.pricing.spend.calendar import Calendar

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
    "version",
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
#: Until 2115: later times are no time of a ledger.
_LAST_NS = 4_600_000_000 * 10**9
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
    #: The lease that is opened.
    lease: str | None = None
    #: What charts of a fleet show, one of `WINDOWS_S`.
    window: str = "24h"
    #: What charges are divided by, and whether they are those of rollouts alone.
    by: str = GROUPS[0]
    work: str = ROLLOUTS


def parse(query: Mapping[str, Sequence[str]]) -> tuple[Link, list[str]]:
    """The link of a query, and the names in it that were left out, for Markdown."""
    link, ignored = Link(), []
    for name, values in query.items():
        if name in _FIELDS and len(values) == 1 and _FIELDS[name](values[0]):
            link = with_choices(link, {name: values[0]})
        else:
            ignored.append(escape.markdown(name[:_SHOWN_MAX]))
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
    try:
        period = Calendar().period(text, _NOW_NS)
    except PricingError:
        return False
    return period.from_ns >= 0 and period.to_ns <= _LAST_NS


def _name(text: str) -> bool:
    """Whether a ledger may have such a name."""
    return 0 < len(text) <= _LENGTH_MAX and text.isprintable()


#: Whether a text may be the value of a field.
_FIELDS: Mapping[str, Callable[[str], bool]] = {
    "period": is_period,
    "view": VIEWS.__contains__,
    "provenance": PROVENANCES.__contains__,
    "run": _name,
    "team": _name,
    "lease": _name,
    "window": WINDOWS_S.__contains__,
    "by": GROUPS.__contains__,
    "work": (ROLLOUTS, EVERYTHING).__contains__,
}
assert set(_FIELDS) == {field.name for field in fields(Link)}
