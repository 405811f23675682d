"""The project's SQL, by who asks: `views/` is the interface and `queries/` what people ask by name, by subject.

`interface.md` says how to use these two. `rollups/` is what the daily views are made of. `sums/` and `charges/` are
programs: their steps are numbered in the order in which they run. `run/`, `borrowing/` and `answers/` are what reports
read; `api/`, `dashboard/`, `metrics/`, `jobs/`, `checks/`, `device/`, `export/`, `reconcile/` and `alerts/`
are named after who asks. `closing/` belongs to the books.
"""

from __future__ import annotations

from importlib.resources import files


def read(name: str) -> str:
    """The text of a file of this folder, such as "views/lease.sql". Raises FileNotFoundError."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
