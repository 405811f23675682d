"""What to add to an error so that the next try succeeds: the nearest name there is, or what DuckDB's message means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import duckdb

from rose.ledger import catalog

#: DuckDB's ways to say that a column is not known, each with its name in quotes.
_NO_COLUMN = re.compile(
    r'does not have a column named "([^"]+)"|Referenced column "([^"]+)" not found'
    r'|Column "([^"]+)" (?:does not exist on (?:left|right) side of join|in \w+ list not found)'
)
#: What it suggests instead, near or not.
_CANDIDATES = re.compile(r"\nCandidate bindings: [^\n]*")
#: Views that have the columns of all kinds, and so tell nothing; and how many others are named.
_VIEWS_OF_ALL = ("event", "faulty_event")
_VIEWS_MAX = 4
#: What is no word of SQL, though it may hold one.
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
#: AT also begins AT TIME ZONE and, of a table, AT (VERSION => ...).
_BARE_AT = re.compile(r"(?<!\w)at(?!\w)(?!\s+time\s+zone|\s*\(\s*\w+\s*=>)", re.IGNORECASE)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean X?` with those of `names` that are nearest to `name`; empty if none is near."""
    near = difflib.get_close_matches(name.lower(), list(names), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def explained(connection: duckdb.DuckDBPyConnection, message: str, text: str) -> str:
    """A message of DuckDB's about `text`, a statement on the ledger that `connection` reads, with what helps."""
    code = _QUOTED.sub(" ", text)
    if "Parser Error" in message and _BARE_AT.search(code):
        return f"{message}\nAT is a reserved word of DuckDB: the column is event_time"
    if unknown := _NO_COLUMN.search(message):
        column = next(name for name in unknown.groups() if name)
        if hint := _column_hint(connection, column.lower(), {word.lower() for word in re.findall(r"\w+", code)}):
            return f"{_CANDIDATES.sub('', message)}\n{hint}"
    return message


def _column_hint(connection: duckdb.DuckDBPyConnection, column: str, words: set[str]) -> str:
    """What a column may be that no view among the statement's words has: one of theirs, or another view's."""
    columns: dict[str, list[str]] = {view: [] for view in catalog.VIEWS}
    listed = "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'ledger'"
    for view, name in connection.execute(listed).fetchall():
        if view in columns:
            columns[view].append(name)
    own = {name for view in columns.keys() & words for name in columns[view]}
    if column in own:
        # It is there, but not where it was asked for: DuckDB knows better.
        return ""
    if views := _views_with(column, columns):
        return f"{column} is a column of {views}"
    if near := did_you_mean(column, sorted(own)):
        return near.removeprefix("; ").capitalize()
    elsewhere = sorted({name for names in columns.values() for name in names} - own)
    if nearest := difflib.get_close_matches(column, elsewhere, n=1, cutoff=0.75):
        return f"Did you mean {nearest[0]}, a column of {_views_with(nearest[0], columns)}?"
    return ""


def _views_with(column: str, columns: dict[str, list[str]]) -> str:
    """The views that have a column, in the order of the reference."""
    views = [view for view in columns if column in columns[view] and view not in _VIEWS_OF_ALL]
    if not views:
        views = [view for view in _VIEWS_OF_ALL if column in columns[view]]
    names = views[:_VIEWS_MAX] if len(views) <= _VIEWS_MAX else [*views[: _VIEWS_MAX - 1], "others"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
