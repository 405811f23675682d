"""The project's SQL, by who asks: `views/` is the interface and `queries/` what people ask by name, by subject.

`interface.md` says how to use these two. `rollups/` is what the daily views are made of. `sums/` and `charges/` are
programs: their steps are numbered in the order in which they run. `run/`, `borrowing/` and `answers/` are what reports
read; `api/`, `dashboard/`, `metrics/`, `jobs/`, `checks/`, `device/`, `export/`, `reconcile/` and `alerts/`
are named after who asks. `closing/` belongs to the books.
"""

from __future__ import annotations

import functools
from importlib.resources import files


def read(name: str) -> str:
    """The text of a file of this folder, such as "jobs/last.sql". Raises FileNotFoundError."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def paths(folder: str) -> dict[str, str]:
    """Where each file in the folders of `views` or `queries` lies, by its name without the suffix."""
    return {
        file.name.removesuffix(".sql"): f"{folder}/{subject.name}/{file.name}"
        for subject in files(__name__).joinpath(folder).iterdir()
        if subject.is_dir()
        for file in subject.iterdir()
        if file.name.endswith(".sql")
    }


def view(name: str) -> str:
    """The text that makes a view of the ledger. Raises KeyError."""
    return read(paths("views")[name])
