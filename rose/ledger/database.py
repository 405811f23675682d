"""DuckDB, as every part of ROSE opens it."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb


def connect(
    path: str = ":memory:", *, config: Mapping[str, str | bool | int | float | list[str]] | None = None
) -> duckdb.DuckDBPyConnection:
    """`duckdb.connect` without the progress bar; raises duckdb.Error.

    A process that has no file of its own, as one that `multiprocessing` spawns, would draw it on standard output, into
    whatever JSON is being written there.
    """
    connection = duckdb.connect(path, config=dict(config or {}))
    connection.execute("SET enable_progress_bar = false")
    return connection
