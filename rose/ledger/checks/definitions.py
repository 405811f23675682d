"""What a catalog defines, held against what it must define: the views by their text, and nothing else at all.

A macro in a catalog goes before DuckDB's function of the same name, in every view; so does a type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import duckdb

import sql

_VIEWS = "SELECT 'view', view_name, sql FROM duckdb_views() WHERE database_name = 'ledger' AND NOT internal"
#: DuckDB keeps the names after EXCLUDE as a set, and gives them in another order each time it reads them back.
_EXCLUDED = re.compile(r"(?<=EXCLUDE \()[^()]+(?=\))")


def canonical(connection: duckdb.DuckDBPyConnection, bodies: Mapping[str, str]) -> dict[str, str]:
    """Each SELECT as DuckDB writes it down again after reading it: the text that it gives of a view."""
    listed = [body.strip().removesuffix(";") for body in bodies.values()]
    select = "SELECT json_deserialize_sql(json_serialize_sql(body)) FROM (SELECT unnest(?::VARCHAR[]) AS body)"
    texts = [text for (text,) in connection.execute(select, [listed]).fetchall()]
    return dict(zip(bodies, texts, strict=True))


def differences(
    connection: duckdb.DuckDBPyConnection, expected: Mapping[str, str], *, views_only: bool = False
) -> list[str]:
    """How the database attached as `ledger` differs from one with these views, as text; empty if it does not.

    `views_only` is for one that this process made, where nothing else can be: to list macros takes longest.
    """
    problems, missing = [], dict(expected)
    contents = _VIEWS if views_only else sql.read("checks/contents.sql")
    for kind, name, definition in connection.execute(contents).fetchall():
        if kind != "view" or name not in expected:
            problems.append(f"{kind} {name} is foreign")
            continue
        del missing[name]
        texts = [f"CREATE VIEW {text} AS {expected[name]};" for text in (name, f'"{name}"')]
        if _ordered(definition.rstrip()) not in map(_ordered, texts):
            problems.append(f"view {name} is not what this version of ROSE makes of the files here")
    return [*problems, *(f"view {name} is missing" for name in missing)]


def _ordered(text: str) -> str:
    return _EXCLUDED.sub(lambda names: ", ".join(sorted(names[0].split(", "))), text)
