"""DuckDB as every part of ROSE opens it."""

from collections.abc import Mapping

import duckdb


def connect(
    path: str = ":memory:", *, config: Mapping[str, str | bool | int | float | list[str]] | None = None
) -> duckdb.DuckDBPyConnection:
    """Return `duckdb.connect` without the progress bar, which would be drawn into JSON on standard output of a process
    that `multiprocessing` spawned. Raises duckdb.Error."""
    connection = duckdb.connect(path, config=dict(config or {}))
    connection.execute("SET enable_progress_bar = false")
    return connection
