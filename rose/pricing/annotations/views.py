"""Saved views: a name for what the dashboard was asked, which is the query of its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from rose.clock import iso
from rose.errors import did_you_mean
from rose.pricing.annotations import record
from rose.pricing.money import PricingError

SAVED, REMOVED = "view_saved", "view_removed"
_NEEDS = {SAVED: ("name", "query"), REMOVED: ("name",)}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,39}")
#: Encoded, a character of SQL is up to three.
_QUERY_CHARACTERS_MAX = 8000
#: The parameter with text of several lines.
_SQL = "sql"


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A name and a query such as `period=2026-11&team=research`, by whom and when (UTC microseconds)."""

    name: str
    query: str
    by: str
    at_us: int

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "query": self.query, "by": self.by, "at": iso(self.at_us)}


def load(root: Path) -> dict[str, View]:
    """The saved views by name. Raises LedgerError."""
    known: dict[str, View] = {}
    for action, detail in record.read(root, _NEEDS):
        known.pop(detail["name"], None)
        if action == SAVED:
            known[detail["name"]] = _view(detail)
    return dict(sorted(known.items()))


def save(root: Path, name: str, query: str, *, by: str | None = None) -> View:
    """Save a query under a name; what had the name before stays in the ledger.

    Raises PricingError for a name or query that is none, LedgerError.
    """
    if _NAME.fullmatch(name) is None:
        raise PricingError(f"{name!r} is no name for a view; give up to 64 letters, digits, `-`, `_` or `.`")
    checked = checked_query(query)
    with record.changing(root) as folder:
        return _view(record.append(folder, SAVED, {"name": name, "query": checked}, by=by))


def remove(root: Path, name: str, *, by: str | None = None) -> View:
    """Remove a view. Raises PricingError for a name that none has, LedgerError."""
    with record.changing(root) as folder:
        known = load(folder)
        if name not in known:
            raise PricingError(f"no view is saved as {name!r}{did_you_mean(name, known)}")
        record.append(folder, REMOVED, {"name": name}, by=by)
    return known[name]


def checked_query(query: str) -> str:
    """The query of a URL, encoded anew. Raises PricingError for text that is none, such as a whole URL."""
    example = "; give what follows the `?` in the dashboard's address, such as 'period=2026-11&team=research'"
    if len(query) > _QUERY_CHARACTERS_MAX:
        raise PricingError(f"query has {len(query)} characters, and {_QUERY_CHARACTERS_MAX} are the most")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        pairs = []
    if not pairs:
        raise PricingError(f"query {query!r} is no query of a URL{example}")
    names = [name for name, _ in pairs]
    for name, value in pairs:
        if _KEY.fullmatch(name) is None:
            raise PricingError(f"query: {name!r} is no name of a parameter{example}")
        if names.count(name) > 1:
            raise PricingError(f"query: {name} is given twice, with {value!r} too: give it once")
        written = value.replace("\n", "").replace("\t", "") if name == _SQL else value
        if not written.isprintable():
            raise PricingError(f"query: {name} has a control character in {value!r}: leave it out")
    return urlencode(pairs)


def _view(detail: dict[str, Any]) -> View:
    return View(name=detail["name"], query=detail["query"], by=detail["by"], at_us=detail["at_us"])
