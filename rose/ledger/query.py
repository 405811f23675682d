"""SQL of users on the ledger: one SELECT that can neither write nor look elsewhere, with a limit and a time limit."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from rose.ledger import catalog, layout
from rose.ledger.layout import LedgerError

_ALLOWED = (
    "Allowed is exactly one SELECT over the ledger's views "
    f"({', '.join(catalog.VIEWS)}); WITH, FROM, DESCRIBE and SUMMARIZE count as SELECT"
)


class QueryError(LedgerError):
    """A query that was refused or failed; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of a query. `truncated` says that there were more than the limit."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool


def query(
    root: Path | str, text: str, *, limit: int = 10_000, timeout_s: float = 30.0, memory_limit_gb: float = 2.0
) -> Result:
    """Run one SELECT on the ledger at `root`; at most `limit` rows, within `timeout_s` and `memory_limit_gb`.

    Raises QueryError if the text is anything else, reads outside the ledger, fails, or takes too long; LedgerError
    if `root` is no ledger.
    """
    if limit < 0 or timeout_s <= 0 or memory_limit_gb <= 0:
        raise QueryError(f"limit {limit}, timeout {timeout_s} s and memory {memory_limit_gb} GB must be positive")
    root = layout.check(root)
    with catalog.connect(root) as connection:
        statement = _one_select(connection, text)
        _lock_down(connection, root, memory_limit_gb)
        timer = threading.Timer(timeout_s, connection.interrupt)
        timer.start()
        try:
            # The newline ends a comment that the text may end with.
            cursor = connection.execute(f"SELECT * FROM (\n{statement}\n) LIMIT {limit + 1}")
            description = cursor.description or []
            rows = cursor.fetchall()
        except duckdb.InterruptException as error:
            raise QueryError(f"the query took longer than {timeout_s:g} s; narrow it, or raise the timeout") from error
        except duckdb.Error as error:
            raise QueryError(f"{error}{_hint(str(error), statement)}") from error
        finally:
            timer.cancel()
    columns, types = [item[0] for item in description], [str(item[1]) for item in description]
    return Result(columns, types, rows[:limit], truncated=len(rows) > limit)


def _one_select(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """The text of the one statement in `text`, without a semicolon. Raises QueryError."""
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as error:
        raise QueryError(f"{error}{_hint(str(error), text)}") from error
    if len(statements) != 1:
        raise QueryError(f"{len(statements)} statements were given. {_ALLOWED}")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise QueryError(f"a {statements[0].type.name} statement was given. {_ALLOWED}")
    return statements[0].query.strip().removesuffix(";")


def _lock_down(connection: duckdb.DuckDBPyConnection, root: Path, memory_limit_gb: float) -> None:
    """From here on the connection reads the ledger's folder only, writes nothing, and cannot be set free."""
    connection.execute(f"SET allowed_directories = [{catalog.quoted(f'{root}/')}]")
    connection.execute(f"SET memory_limit = '{memory_limit_gb}GB'")
    connection.execute("SET temp_directory = ''")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _hint(message: str, text: str) -> str:
    if "Parser Error" in message and '"at"' not in text and " at" in text.lower():
        return '\nAT is a reserved word: write the column as "at", or with its view as in lease.at'
    if "Permission Error" in message:
        return f"\n{_ALLOWED}"
    return ""
