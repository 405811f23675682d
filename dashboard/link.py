"""Turns a page's choices into the query of the page's address, and back. Default choices are left out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from dashboard import escape
from rose.pricing.closing.charge_algebra import BY
from rose.pricing.money import PricingError
from rose.pricing.spend.calendar import Calendar

NEWEST, ALL = "newest", "all"  # Periods relative to the ledger: the newest month with data, and all.
AMORTIZED, FULLY_LOADED = "amortized", "fully-loaded"
VIEWS = (AMORTIZED, FULLY_LOADED)
PROVENANCES = ("live", "replay", "simulated")
GROUPS = tuple(name for name in BY if name not in ("hardware", "commitment", "kind", "work"))
ROLLOUTS, EVERYTHING = "rollouts", "everything"
#: Seconds before a run's last event.
WINDOWS_S: Mapping[str, int] = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800}

_LENGTH_MAX = 200
_SHOWN_MAX = 40
_LAST_NS = 4_600_000_000 * 10**9  # In 2115.
_NOW_NS = 1_793_491_200 * 10**9  # 2026-11-01, to check the form of a period.


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The choices of a page. None means that the reader chose no value; each page then has its own default."""

    period: str = NEWEST
    view: str = AMORTIZED
    provenance: str | None = None
    run: str | None = None
    team: str | None = None
    lease: str | None = None
    window: str = "24h"
    by: str = GROUPS[0]
    work: str = ROLLOUTS


def parse(query: Mapping[str, Sequence[str]]) -> tuple[Link, list[str]]:
    """Return the choices in an address's query, and the names of invalid choices, escaped for Markdown."""
    link, ignored = Link(), []
    for name, values in query.items():
        if name in _FIELDS and len(values) == 1 and _FIELDS[name](values[0]):
            link = with_choices(link, {name: values[0]})
        else:
            ignored.append(escape.markdown(name[:_SHOWN_MAX]))
    return link, ignored


def with_choices(link: Link, choices: Mapping[str, object]) -> Link:
    return replace(link, **cast(dict[str, Any], choices))


def query(link: Link) -> dict[str, str]:
    return {field.name: value for field in fields(Link) if (value := getattr(link, field.name)) != field.default}


def is_period(text: str) -> bool:
    if text in (NEWEST, ALL):
        return True
    try:
        period = Calendar().period(text, _NOW_NS)
    except PricingError:
        return False
    return period.from_ns >= 0 and period.to_ns <= _LAST_NS


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LENGTH_MAX and text.isprintable()


_FIELDS: Mapping[str, Callable[[str], bool]] = {
    "period": is_period,
    "view": VIEWS.__contains__,
    "provenance": PROVENANCES.__contains__,
    "run": _is_name,
    "team": _is_name,
    "lease": _is_name,
    "window": WINDOWS_S.__contains__,
    "by": GROUPS.__contains__,
    "work": (ROLLOUTS, EVERYTHING).__contains__,
}
assert set(_FIELDS) == {field.name for field in fields(Link)}
