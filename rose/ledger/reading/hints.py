"""What to add to an error so that the next try succeeds: the nearest name there is, or what DuckDB's message means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import duckdb

from rose.ledger import catalog

_NO_COLUMN = re.compile(r'does not have a column named "([^"]+)"')
#: What is no word of SQL, though it may hold one.
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
#: AT also begins AT TIME ZONE and, of a table, AT (VERSION => ...).
_BARE_AT = re.compile(r"(?<!\w)at(?!\w)(?!\s+time\s+zone|\s*\(\s*\w+\s*=>)", re.IGNORECASE)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean X?` with those of `names` that are nearest to `name`; empty if none is near."""
    near = difflib.get_close_matches(name.lower(), list(names), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def hint(connection: duckdb.DuckDBPyConnection, message: str, text: str) -> str:
    """What to add to a message of DuckDB's about `text`, a statement on the ledger that `connection` reads."""
    code = _QUOTED.sub(" ", text)
    if "Parser Error" in message and _BARE_AT.search(code):
        return "\nAT is a reserved word of DuckDB: the column is event_time"
    # Of a column without its table DuckDB names the candidates itself.
    if column := _NO_COLUMN.search(message):
        views = {word for word in re.findall(r"\w+", code.lower()) if word in catalog.VIEWS}
        columns = [row[0] for view in sorted(views) for row in connection.execute(f"DESCRIBE {view}").fetchall()]
        if near := did_you_mean(column[1], dict.fromkeys(columns)):
            return f"\n{near.removeprefix('; ').capitalize()}"
    return ""
