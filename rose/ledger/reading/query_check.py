"""Checks, with DuckDB's own parser, that a user's SQL is one SELECT over the views of the catalog.

Only listed kinds of table references, table functions and tables are allowed. Scalar functions are allowed, except
listed functions that use more than their arguments. DuckDB's lock-down (see `query_worker`) is the second defence."""

import functools
import json
from typing import Any

import duckdb

from rose.errors import did_you_mean
from rose.ledger.files import catalog
from rose.ledger.reading.query import QueryError

TEXT_MAX = 100_000

#: Table functions of their arguments alone. None of them takes a table's name in a string.
TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"})
#: Scalar functions that look at the process, its settings or its state, that bind SQL in a text, or that only wait.
FUNCTIONS_REFUSED = frozenset(
    {
        *("current_connection_id", "current_query", "current_query_id", "current_setting", "current_transaction_id"),
        *("currval", "get_block_size", "getenv", "json_serialize_plan", "nextval", "setseed", "setval", "sleep_ms"),
        *("stats", "txid_current", "vector_type", "version", "write_log"),
    }
)
_PREFIXES_REFUSED = ("pg_", "has_", "inet_", "__internal", "duckdb_", "pragma_", "read_")
_TABLE_REFERENCES = frozenset(
    {"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SHOW_REF", "SUBQUERY", "TABLE_FUNCTION"}
)
#: Schemas that may qualify a view. The catalog is attached as `ledger`.
_QUALIFIERS: tuple[list[str], ...] = ([], ["main"], ["internal"], ["ledger"], ["ledger", "main"])

_ALLOWED = (
    "Allowed is exactly one SELECT over the ledger's views "
    f"({', '.join(catalog.VIEWS)}); WITH, FROM, DESCRIBE and SUMMARIZE count as SELECT"
)

_refusal = functools.partial(QueryError, outcome="refused")


def limited(connection: duckdb.DuckDBPyConnection, text: str, limit: int) -> str:
    wrapped = f"SELECT * FROM (\n{_one_select(connection, text)}\n) LIMIT {limit}"
    try:
        ((serialized,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [wrapped]).fetchall()
        tree = json.loads(serialized)
    except duckdb.Error as error:
        raise _refusal(explained(str(error))) from error
    except RecursionError as error:
        raise _refusal("the query is nested too deeply; split it into parts with WITH") from error
    if tree["error"]:
        raise _refusal(explained(f"{tree['error_type'].title()} Error: {tree['error_message']}"))
    if len(tree["statements"]) != 1:
        raise _refusal(f"{len(tree['statements'])} statements were given. {_ALLOWED}")
    check(tree["statements"][0])
    return wrapped


def check(tree: dict[str, Any]) -> None:
    # Visible names of WITH travel with each node. Any other name could be a file's.
    waiting: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        node, visible = waiting.pop()
        if isinstance(node, list):
            waiting.extend((item, visible) for item in node)
        if not isinstance(node, dict):
            continue
        if "alias" in node and "sample" in node:
            _check_reference(node, visible)
        elif (function := node.get("function_name", "").lower()) in FUNCTIONS_REFUSED or function.startswith(
            _PREFIXES_REFUSED
        ):
            what = f"the function {function!r} is not allowed: it looks at more than its arguments"
            raise _refusal(f"{what}. {_ALLOWED}")
        if isinstance(with_clause := node.get("cte_map"), dict):
            for entry in with_clause["map"]:
                name = frozenset({entry["key"].lower()})
                body = entry["value"]
                recursive = body["query_node"]["type"] == "RECURSIVE_CTE_NODE"
                waiting.append((body, visible | name if recursive else visible))
                visible |= name
        for key, value in node.items():
            if key != "cte_map":
                waiting.append((value, visible))


def _check_reference(node: dict[str, Any], visible: frozenset[str]) -> None:
    kind = node["type"]
    if kind not in _TABLE_REFERENCES:
        raise _refusal(f"{kind} is not allowed in FROM. {_ALLOWED}")
    if kind == "SHOW_REF" and not (node["query"] and node["show_type"] in ("DESCRIBE", "SUMMARY")):
        raise _refusal(f"SHOW is not allowed. {_ALLOWED}")
    if kind == "PIVOT" and any(pivot["pivot_enum"] for pivot in node["pivots"]):
        raise _refusal(f"a PIVOT over a type is not allowed. {_ALLOWED}")
    if kind == "BASE_TABLE":
        *qualifier, table = _path(node)
        if (qualifier or table not in visible) and not (qualifier in _QUALIFIERS and table in catalog.NAMES):
            near = did_you_mean(table, {*catalog.VIEWS, *visible})
            raise _refusal(f"{'.'.join([*qualifier, table])!r} is not a view of the ledger{near}")
    if kind == "TABLE_FUNCTION":
        *qualifier, name = _path(node["function"])
        if qualifier or name not in TABLE_FUNCTIONS:
            raise _refusal(f"the table function {name!r} is not allowed. {_ALLOWED}")


def _path(node: dict[str, Any]) -> list[str]:
    return [part.lower() for part in node["qualified_name"]["path"]]


def _one_select(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    if len(text) > TEXT_MAX:
        raise _refusal(f"the query has {len(text)} characters; at most {TEXT_MAX} are read")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refusal(f"the query has half a character (a surrogate) at {error.start}; leave it out") from error
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as error:
        raise _refusal(explained(str(error))) from error
    if len(statements) != 1:
        raise _refusal(f"{len(statements)} statements were given. {_ALLOWED}")
    kind = _kind(statements[0])
    if kind == "MULTI":
        raise _refusal(
            "PIVOT must list its values here, as in PIVOT lease ON step IN (1, 2) USING count(*): "
            "without them it is more than one statement"
        )
    if kind != "SELECT":
        raise _refusal(f"a {kind} statement was given. {_ALLOWED}")
    return statements[0].query.strip().removesuffix(";")


def _kind(statement: duckdb.Statement) -> str:
    try:
        return statement.type.name
    except ValueError:
        return "non-SELECT"


def explained(message: str) -> str:
    return f"{message}\n{_ALLOWED}" if "Permission Error" in message else message
