"""The project's SQL: `views/` and `queries/`, each file of which runs by itself in any DuckDB client."""

from __future__ import annotations

from importlib.resources import files


def read(name: str) -> str:
    """The text of a file of this folder, such as "views/lease.sql". Raises FileNotFoundError."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
