"""The project's SQL: `views/` (the interface), `queries/` (by name, for people), `figures/` (for reports and pages).

`interface.md` says how to use the first two. `rollups/` is what the daily views are made of, `migrations/` and `books/`
belong to the books, a database of its own.
"""

from __future__ import annotations

from importlib.resources import files


def read(name: str) -> str:
    """The text of a file of this folder, such as "views/lease.sql". Raises FileNotFoundError."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
